// SPDX-License-Identifier: Apache-2.0
// From bytes of files that are gone to elements of tensors, and back.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/salvage/repair.h"

namespace ckpt::library {

// By the index of a file in a catalog; normalized.
using GoneBytes = std::vector<std::vector<salvage::Range>>;

// Elements of a piece, row-major in its box, counted from the first one it
// holds (flat->begin): those of which a byte is gone. Sorted, joined.
std::vector<FlatRange> gone_elements(const Tensor& tensor, const Piece& piece,
                                     const std::vector<salvage::Range>& gone);
std::vector<FlatRange> common(const std::vector<FlatRange>& a,
                              const std::vector<FlatRange>& b);
std::vector<FlatRange> minus(const std::vector<FlatRange>& a,
                             const std::vector<FlatRange>& b);
uint64_t count(const std::vector<FlatRange>& elements);
uint64_t element_count(const Piece& piece);

// Calls `run` with a first element, its byte in the file and how many stand
// there one behind the other.
void for_each_run(const Tensor& tensor, const Piece& piece,
                  const std::vector<FlatRange>& elements,
                  const std::function<void(uint64_t element, uint64_t offset,
                                           uint64_t count)>& run);

// One element of that dtype as it is stored: zero, or not a number where the
// dtype has that.
std::string filler(DType dtype, bool nan);

}  // namespace ckpt::library
