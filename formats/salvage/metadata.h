// SPDX-License-Identifier: Apache-2.0
// Restores a lost .metadata from the items of the .distcp files beside it and
// ckpt's manifest: the manifest has names, dtypes, shapes and digests, and the
// digests prove which item is which part of which tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/salvage/repair.h"
#include "lib/manifest.h"

namespace ckpt::salvage {

struct LostMetadata {
  std::string bytes;     // a new .metadata; "" if no item was matched
  uint64_t tensors = 0;  // in the new .metadata
  // Items without a tensor, or whose tensor matches none of the manifest's
  // digests.
  std::vector<Note> nameless;
};

// `directory` has .distcp files but no .metadata. Reads all of them.
LostMetadata match_items(const std::string& directory,
                         const Manifest& manifest);

}  // namespace ckpt::salvage
