// SPDX-License-Identifier: Apache-2.0
// A container of a step, as its own reader returned it. Private to this room.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/ranks/flat_units.h"

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
  // "ranks", "flat": the parts that what FSDP cuts has.
  uint64_t shards = 0;
  // "flat": RankCatalog::units, and whether numbers are parameters.
  std::vector<FlatUnit> units;
  bool original = false;
};

}  // namespace ckpt::runs
