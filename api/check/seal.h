// SPDX-License-Identifier: Apache-2.0
// A manifest for a checkpoint that ckpt did not write, so that rot is found
// later.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "ckpt/catalog.h"
#include "lib/hash/digest.h"
#include "lib/manifest.h"

namespace ckpt::library {

// Where the manifest of a checkpoint belongs, whoever writes it. Throws
// usage_error for what is behind a URL.
std::string seal_path(const Catalog& catalog);

// What its bytes say now; reads those that are no tensor's. Nothing if one of
// the problems is more than a note. `digests`: one for each tensor, in order.
std::optional<Manifest> seal_of(const Catalog& catalog,
                                std::span<const Digest> digests,
                                std::span<const Problem> problems);

// Writes it. Throws unfaithful_error if anything is at its path.
void write_seal(const std::string& path, const Manifest& manifest);

}  // namespace ckpt::library
