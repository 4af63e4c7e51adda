// SPDX-License-Identifier: Apache-2.0
// A .metadata that is lost, from the items of the .distcp files beside it and
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
  std::string bytes;     // of a new one; "" if no item was matched
  uint64_t tensors = 0;  // that it has
  // Items that hold no tensor, or one that none of the manifest's digests has.
  std::vector<Note> nameless;
};

// `directory`: with .distcp files and without .metadata. Reads all of them.
LostMetadata match_items(const std::string& directory,
                         const Manifest& manifest);

}  // namespace ckpt::salvage
