// SPDX-License-Identifier: Apache-2.0
// What the values of a pickle would take, where there is no room to make them.
#pragma once

#include <cstdint>

#include "lib/io/file.h"

namespace ckpt::pickle {

struct Expected {
  uint64_t bytes = 0;
  // At most as many pieces of tensors: each takes three objects of an index
  // (torch.distributed.checkpoint: MetadataIndex, _StorageInfo,
  // ChunkStorageMetadata), or refers to a storage by a persistent id.
  uint64_t pieces = 0;
};

// The pickle begins at `begin` and ends before `end`; its opcodes up to `at`
// made values of `taken` bytes. Those that follow are expected to take as much
// for each, and the bytes of their texts. Sets `end` to the end of the pickle.
Expected expect_values(const io::Handle& file, uint64_t begin, uint64_t at,
                       uint64_t taken, uint64_t& end);

}  // namespace ckpt::pickle
