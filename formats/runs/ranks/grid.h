// SPDX-License-Identifier: Apache-2.0
// How FSDP's ranks are arranged: as a row, each with a part of its own, or in
// rows that hold the same (HYBRID_SHARD). verl makes the mesh of fsdp_size:
//
//   4 ranks, fsdp_size -1 or ≥ 4   (4)     "fsdp"          parts 0 1 2 3
//   4 ranks, fsdp_size 2           (2, 2)  "ddp", "fsdp"   parts 0 1 0 1
//
// Private to this room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ckpt::runs {

inline constexpr std::string_view kFsdpSize = "fsdp-size";

struct Grid {
  uint32_t replicas = 1;
  uint32_t shards = 1;

  uint32_t ranks() const { return replicas * shards; }
  bool hybrid() const { return replicas > 1; }
  uint32_t replica_of(uint32_t rank) const { return rank / shards; }
  uint32_t part_of(uint32_t rank) const { return rank % shards; }
};

// The grid of a job of `ranks` with this fsdp_size (none: -1). Throws
// unfaithful_error, about `path`, if there is none.
Grid grid_of(uint32_t ranks, std::optional<uint32_t> fsdp_size,
             const std::string& path);

}  // namespace ckpt::runs
