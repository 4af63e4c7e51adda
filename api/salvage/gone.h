// SPDX-License-Identifier: Apache-2.0
// From lost bytes of files to elements of tensors, and back.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/salvage/repair.h"

namespace ckpt::library {

// The elements of a piece that lost a byte: row-major in its box, counted from
// the first one it holds (flat->begin). Sorted, joined.
std::vector<FlatRange> gone_elements(const Tensor& tensor, const Piece& piece,
                                     const std::vector<salvage::Range>& gone);
std::vector<FlatRange> minus(const std::vector<FlatRange>& a,
                             const std::vector<FlatRange>& b);
std::vector<FlatRange> united(const std::vector<FlatRange>& a,
                              const std::vector<FlatRange>& b);
uint64_t count(const std::vector<FlatRange>& elements);
uint64_t element_count(const Piece& piece);

// Calls `run` with a first element, its byte in the file and how many elements
// are contiguous there.
void for_each_run(const Tensor& tensor, const Piece& piece,
                  const std::vector<FlatRange>& elements,
                  const std::function<void(uint64_t element, uint64_t offset,
                                           uint64_t count)>& run);

// One stored element of that dtype: zero, or NaN if the dtype has one.
std::string filler(DType dtype, bool nan);

}  // namespace ckpt::library
