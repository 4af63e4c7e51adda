// SPDX-License-Identifier: Apache-2.0
// What torch's HuggingFaceStorageWriter writes: safetensors files that hold
// parts of tensors, without an index. Private to this room.
//
//   shard-00001-model-00001-of-00002.safetensors     rank 0, file 1 of 2
//     __metadata__: DCP_SHARDING_INFO = {"fqn": {"saved_offsets": [0, 0]}, …}
//     fqn: dtype, shape of the part
//
// Nothing states a tensor's size: it ends where its last part does.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/dcp/directory.h"
#include "formats/format.h"

namespace ckpt::dcp {

// The shard files in a directory, sorted; none if they are not marked as parts,
// or if there are whole files (model-…-of-…, an index) beside them.
std::vector<std::string> find_shards(const std::string& directory);

// Throws input_error for parts that don't fit together.
Catalog read_shards(const Directory& directory,
                    const formats::ReadOptions& options);

}  // namespace ckpt::dcp
