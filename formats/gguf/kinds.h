// SPDX-License-Identifier: Apache-2.0
// What llama.cpp asks of the types of tensors in a file.
#pragma once

#include <optional>

#include "ckpt/catalog.h"
#include "lib/ggml.h"

namespace ckpt::gguf {

// True for what ggml's kernels take in f32 alone.
bool needs_f32(const Tensor& tensor);

// llama.cpp's number for a file most of whose tensors have that type
// (general.file_type); nothing for types that are never most of a file.
std::optional<int> file_type_of(GgmlType type);

// The type of blocks that are made on the way of what the source has as
// numbers; null for any other tensor.
const GgmlInfo* made_blocks_of(const Tensor& tensor, const Catalog& catalog);

}  // namespace ckpt::gguf
