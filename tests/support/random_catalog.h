// SPDX-License-Identifier: Apache-2.0
// Random tensors cut into random pieces, for property tests. The content of a
// tensor is a function of its name and the element's index, so what a piece
// must hold is known without asking the code under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::test {

using Random = std::mt19937_64;

// The bytes that a tensor must have, in row-major order.
std::vector<std::byte> content_of(const Tensor& tensor);

// A tensor without pieces.
Tensor random_tensor(Random& random, const std::string& name);

// Cuts the tensor: along one or two dimensions into even or uneven parts, or
// into flat ranges of the parts; sometimes with replicas. Returns boxes and
// flat ranges only, no extents.
std::vector<Piece> random_pieces(Random& random, const Shape& shape,
                                 bool replicas);

// Gives every piece of every tensor a place in one of `files` files, in
// random order, with gaps if `gaps`. Sets the sizes in catalog.files.
void place_randomly(Random& random, Catalog& catalog, uint32_t files,
                    bool gaps);

// The elements of a piece, packed row-major, straight from content_of.
std::vector<std::byte> piece_content(const Tensor& tensor, const Piece& piece);

// The files of a catalog whose pieces are contiguous, filled from content_of;
// gaps are filled with noise.
std::vector<std::vector<std::byte>> files_of(const Catalog& catalog);

}  // namespace ckpt::test
