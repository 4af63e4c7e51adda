// SPDX-License-Identifier: Apache-2.0
// One string for all weights of a checkpoint, whatever its topology and format
// (docs/digest.md).
#pragma once

#include <span>
#include <string>

#include "ckpt/catalog.h"
#include "lib/hash/digest.h"

namespace ckpt::library {

// SHA-256 in hexadecimal of a line for each of the model's tensors, sorted by
// name. `digests`: one for each tensor of the catalog, in order. "" for a
// checkpoint without tensors of a model.
std::string fingerprint(const Catalog& catalog,
                        std::span<const Digest> digests);

}  // namespace ckpt::library
