// SPDX-License-Identifier: Apache-2.0
// Parts of tensors into memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/engine.h"

namespace ckpt::reshard {

// The elements of a box of a tensor, row-major, in the tensor's dtype. Reads
// what the box needs and no more. Throws unfaithful_error if pieces are
// missing.
std::vector<std::byte> read_box(const Catalog& catalog, const Tensor& tensor,
                                const Box& box, const RunOptions& options = {});

// Into `out`, which has the size of the box.
void read_box(const Catalog& catalog, const Tensor& tensor, const Box& box,
              std::span<std::byte> out, const RunOptions& options = {});

// The tensor in boxes of at most `bytes` bytes (but one element at least),
// in row-major order: their union is the tensor.
std::vector<Box> tiles(const Tensor& tensor, uint64_t bytes);

}  // namespace ckpt::reshard
