// SPDX-License-Identifier: Apache-2.0
// Plans one safetensors file: which bytes its header has and where in it the
// data of each tensor lie.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/layout.h"
#include "containers/safetensors/header.h"

namespace ckpt::safetensors {

// How a dtype is stored: "BF16". Quantized integers are plain ones without
// their scales; two F4 values fill one byte of torch's f4x2.
std::string_view stored_as(DType dtype);

// What a header says of the tensor. Throws unfaithful_error for dtypes, names
// and sizes that safetensors can't hold.
Described describe(const Tensor& tensor);

// Adds a file with these tensors of target.catalog (by number) to the target;
// each gets a piece in it. Data are in the order of the reference writer: by
// dtype, then by name. Throws unfaithful_error.
//
// Spaces after the header (less than a block of a file system, 4 KiB) let most
// of the data lie in their blocks as they do in `source` (the catalog whose
// tensors these are, same numbers, or null) if that is safetensors too, else
// begin with a block: XFS and btrfs can share such blocks instead of copying.
// Files with less than 256 KiB of data have none.
void add_file(Target& target, const std::string& path,
              std::span<const uint32_t> tensors,
              const std::optional<Metadata>& metadata,
              const Catalog* source = nullptr);

}  // namespace ckpt::safetensors
