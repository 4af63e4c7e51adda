// SPDX-License-Identifier: Apache-2.0
// What writers of any format start a target with and add to it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::formats {

// A copy of the source's tensor without its pieces. (Copying and clearing them
// would keep their memory, a quarter of a GiB for a million pieces.)
Tensor without_pieces(const Tensor& tensor);

// The source's tensors, family and dialect; the writer places the pieces.
// Tensors keep dtype and shape, so that the plan copies bytes: what a header
// calls them is up to the header. No ties: each tensor is stored separately.
Catalog catalog_like(const Catalog& source, std::string_view format);

// Throws unfaithful_error for a tensor of torch's quantized dtypes: its codes
// are numbers by a scale and a zero point, for which only its own pickle has a
// place.
void refuse_quantized(const Catalog& source, std::string_view format);

// Files known in full at layout time: these bytes, or a copy.
TargetFile literal_file(std::string path, std::string content);
TargetFile copied_file(std::string path, const Sidecar& sidecar);

// Adds what a writer made of some of the source's tensors (their numbers) to
// the target of all; target.catalog has a place for each.
void add_part(Target part, std::span<const uint32_t> tensors, Target& target);

// Copies the source's sidecars, under their names, to `folder` of the target,
// if that is not empty. Unless `keep`, they are treated like all other files
// beside the checkpoint (settle_files).
void copy_sidecars(const Catalog& source, bool keep, std::string_view folder,
                   Target& target);

}  // namespace ckpt::formats
