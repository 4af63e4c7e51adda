// SPDX-License-Identifier: Apache-2.0
// One file of torch's HuggingFaceStorageWriter: safetensors with the parts of
// tensors that one rank held. Private to this room.
//
//   "__metadata__": {"DCP_SHARDING_INFO":
//                        "{\"w\": {\"saved_offsets\": [8, 0]}}"}
#pragma once

#include <string>
#include <vector>

#include "ckpt/box.h"
#include "containers/safetensors/header.h"

namespace ckpt::dcp {

inline constexpr std::string_view kShardInfo = "DCP_SHARDING_INFO";

struct Shard {
  std::string path;
  uint64_t size = 0;           // of the file
  safetensors::Header header;  // metadata without kShardInfo
  std::vector<Dims> offsets;   // of header.entries, in their tensors
};

// Throws input_error if the file is not such a shard, or if it does not say
// where one of its tensors belongs. Safe to call from many threads.
Shard read_shard(const std::string& path);

}  // namespace ckpt::dcp
