// SPDX-License-Identifier: Apache-2.0
// The containers of a step, each as its own reader returned it. Private to this
// room.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/runs/find.h"
#include "formats/runs/order.h"

namespace ckpt::runs {

// tensors[first + i] of the run are catalog.tensors[i], and files[base + f]
// catalog.files[f].
struct Container {
  std::string at;    // in the step: "optimizer_0", "actor"; "": the step
  std::string read;  // "dcp", "torch", "safetensors", "ranks" …
  std::string file;  // the pattern of trainers.json
  size_t first = 0;
  size_t base = 0;
  Catalog catalog;
  // "flat": the parameters of each flat parameter, by its number.
  std::vector<std::vector<Parameter>> units;
};

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
