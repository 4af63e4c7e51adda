// SPDX-License-Identifier: Apache-2.0
// What writers begin a target with and add to it, whatever their format.
#pragma once

#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::formats {

// A tensor as the source has it, but for its pieces. (To copy and clear them
// would keep their memory, a quarter of a GiB for a million of them.)
Tensor without_pieces(const Tensor& tensor);

// The source's tensors, family and dialect; the pieces are the writer's to
// place. Tensors keep dtype and shape, so that the plan copies bytes: what a
// header calls them is the header's matter. No ties: each tensor is stored
// for itself.
Catalog catalog_like(const Catalog& source, std::string_view format);

// Files that are known when they are laid out: these bytes, or a copy.
TargetFile literal_file(std::string path, std::string content);
TargetFile copied_file(std::string path, const Sidecar& sidecar);

// Copies the source's sidecars, under their names, to `folder` of the target,
// if that is not empty. Unless `keep`, they are like all other files beside the
// checkpoint (settle_files).
void copy_sidecars(const Catalog& source, bool keep, std::string_view folder,
                   Target& target);

}  // namespace ckpt::formats
