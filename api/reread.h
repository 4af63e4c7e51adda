// SPDX-License-Identifier: Apache-2.0
// Sources whose tensors reach the target under other names, or in other
// arrangements: what was read of them on the way adds up to nothing that the
// source's own manifest knows.
#pragma once

#include <set>
#include <string>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "lib/manifest.h"
#include "reshard/engine.h"

namespace ckpt::library {

// Opens the checkpoint again, reads these of its tensors, and compares their
// shapes and digests with the manifest's. Throws input_error naming the first
// that differs.
void check_by_reading(const Catalog& source, const Manifest& manifest,
                      const std::string& manifest_path,
                      const std::set<std::string>& names,
                      const reshard::RunOptions& options);

// Rows of padding may come and go where a format has them.
bool may_be_padded(const Catalog& source, const Shape& shape,
                   const Manifest::Entry& written);

// For all ways to find it.
Error differs(const Catalog& source, const std::string& tensor,
              const Digest& found, const Digest& written,
              const std::string& manifest_path);

}  // namespace ckpt::library
