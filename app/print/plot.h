// SPDX-License-Identifier: Apache-2.0
// A picture of values (SVG): for each layer, or step, its norm as a bar and how
// many elements there are of each magnitude.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/numbers/stats.h"

namespace ckpt::app {

struct NamedStats {
  std::string name;  // printable
  reshard::Stats stats;
};

// The model's layers in order, then "other" for what is in none. Empty where
// one tensor holds many layers.
std::vector<NamedStats> stats_by_layer(const Catalog& catalog,
                                       std::span<const reshard::Stats> stats);

// The layers if there are several, else the tensors of the model.
std::vector<NamedStats> plotted_stats(const Catalog& catalog,
                                      std::span<const reshard::Stats> stats);

// An <svg> element, also a file by itself with `alone`. Rows with NaN or
// infinite elements come first.
std::string plot_svg(std::string_view heading, std::vector<NamedStats> rows,
                     bool alone);

}  // namespace ckpt::app
