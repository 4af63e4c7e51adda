// SPDX-License-Identifier: Apache-2.0
// --quantize q8_0 and the like: turns weights of a GGUF target into ggml's
// blocks, as they are written.
//
//   blk.0.attn_q.weight (bf16 [r, c]) ─► the same name (u8 [r, c / 32 * 34])
//
// What becomes blocks is what llama.cpp's converter makes them of
// (--outtype q8_0, tq1_0, tq2_0); of the types that it leaves to llama-quantize
// (q4_0 ...), what that does with --pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "lib/ggml.h"

namespace ckpt::families {

// Expects llama.cpp's names and located extents. Norms, vectors, routers and
// rows that are no whole number of blocks stay numbers; the latter become f16,
// or `rest`. Throws unfaithful_error for other names, and if weights are blocks
// already.
void quantize_ggml(Catalog& catalog, GgmlType type, std::optional<DType> rest);
// True for formats whose tensors may be such blocks.
bool holds_ggml(std::string_view format);

// The command that makes a smaller file of a model whose weights are numbers,
// at `path`; "" for what is small already, and for other formats.
std::string next_step(const Catalog& target, const std::string& path);

}  // namespace ckpt::families
