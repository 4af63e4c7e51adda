// SPDX-License-Identifier: Apache-2.0
// What the directory of a zarr checkpoint holds. Private to this room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

// Adds a tensor for each array and an object (not opened) for each shard_*.pt,
// in the order of their names. Sets archive_opener if there are arrays that
// ckpt can't decompress: they are refused only when needed. Throws input_error
// for damaged arrays and objects; anything else becomes a problem.
void scan_zarr(const std::string& directory, Catalog& catalog);

// "shard_0.1_2.2", the name of an object's file without ".pt".
struct ShardName {
  std::vector<uint64_t> offset;
  std::vector<uint64_t> grid;  // with `cut`: without its last extent
  bool cut = false;
};
// Cores up to 0.7 cut the name at its last dot: "shard_0.1_2".
std::optional<ShardName> parse_shard_name(std::string_view stem);

// "rng_state/shard_0.1_2" -> "rng_state/shard_0.1_2.2": gives cut names their
// last extent back, one more than the highest offset of their key.
void complete_object_names(std::vector<Object>& objects);

// A problem (damage) for each grid with cut names that lacks objects.
void check_cut_grids(Catalog& catalog);

}  // namespace ckpt::megatron
