// SPDX-License-Identifier: Apache-2.0
// Plans one safetensors file: the bytes of its header, and where the data of
// each tensor go.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/layout.h"
#include "containers/safetensors/header.h"

namespace ckpt::safetensors {

// How a dtype is stored: "BF16". Quantized integers become plain ones, without
// their scales; two F4 values fill one byte of torch's f4x2.
std::string_view stored_as(DType dtype);

// What a header says about the tensor. Throws unfaithful_error for dtypes,
// names and sizes that safetensors can't hold.
Described describe(const Tensor& tensor);

// Adds to the target a file with these tensors of target.catalog (by number);
// each gets a piece in it. Data are in the reference writer's order: by dtype,
// then by name. Throws unfaithful_error.
//
// Spaces after the header (less than a file system's block, 4 KiB) put most of
// the data at the same place in their blocks as in `source` (the catalog whose
// tensors these are, same numbers, or null) if that is safetensors too, or else
// let them begin at a block: XFS and btrfs can share such blocks instead of
// copying. Files with less than 256 KiB of data have no such spaces.
void add_file(Target& target, const std::string& path,
              std::span<const uint32_t> tensors,
              const std::optional<Metadata>& metadata,
              const Catalog* source = nullptr);

}  // namespace ckpt::safetensors
