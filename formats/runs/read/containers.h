// SPDX-License-Identifier: Apache-2.0
// The containers of a step, each as its own reader returned it. Private to this
// room.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/runs/read/container.h"

namespace ckpt::runs {

struct Whole {
  Catalog catalog;  // the run's
  std::vector<Container> containers;
};

// What read_run reads, with the containers that it consists of. Nothing if it
// is not a step.
std::optional<Whole> read_containers(const std::string& path,
                                     const std::string& trainer,
                                     const formats::ReadOptions& options);

}  // namespace ckpt::runs
