// SPDX-License-Identifier: Apache-2.0
// metadata.json of olmo_core_v1: which elements of a tensor are in which file.
//
//   {"tensors": {"emb.weight": {
//      "shape": [11, 7], "is_sharded": true, "dtype": "F32",
//      "shard_spec_per_file": {
//        "rank_0.safetensors": {"flattened_offsets": [[0, 39]],
//                               "local_shape": null, "global_offset": null},
//        "rank_1.safetensors": {"flattened_offsets": [[39, 77]], …}}}, …}}
//
// or a box (local_shape at global_offset) instead of flat ranges. Before
// 2024-05-13 there was only
//
//        "flattened_offsets_per_file": {"rank_0.safetensors": [0, 39], …}
//
// later [[0, 39], …]; the first of all have no is_sharded, and no dtype.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/dtype.h"

namespace ckpt::olmo_core::v1 {

inline constexpr std::string_view kIndexName = "metadata.json";

// What one file has of a tensor: the elements of `ranges`, in order, or those
// of the box.
struct Shard {
  uint32_t rank = 0;  // of rank_<r>.safetensors
  std::vector<FlatRange> ranges;
  std::optional<Box> box;
  uint64_t elements = 0;
};

struct Entry {
  std::string name;
  Shape shape;
  std::optional<DType> dtype;   // not in the oldest files
  std::optional<bool> sharded;  // likewise
  std::vector<Shard> shards;
};

enum class Spelling : uint8_t { kPair, kPairs, kSpecs };

struct Index {
  std::string path;
  Spelling spelling = Spelling::kSpecs;
  std::vector<Entry> entries;        // in the index's order; names are unique
  std::vector<std::string> ignored;  // keys beside "tensors"
};

// Reads and checks it: ranges and boxes inside their tensors, sums that don't
// overflow. Throws input_error naming the file and the tensor.
Index read_index(const std::string& path);

// True if the file begins like such an index. Does not throw.
bool looks_like_index(const std::string& path);

// The r of rank_<r>.safetensors, written as OLMo-core writes it.
std::optional<uint32_t> rank_of_file(std::string_view name);
std::string rank_file(uint32_t rank);

// --- writing ---

// The document as the peer's json.dump writes it, on one line. dtype and
// sharded must be set, and names UTF-8.
std::string encode_index(const std::vector<Entry>& entries);

}  // namespace ckpt::olmo_core::v1
