// SPDX-License-Identifier: Apache-2.0
// What ranks hold under one name while no rule says how they share it: copies
// of the whole, or slices of something larger. Headers can't tell.
//
//   rank 0  rm_head.weight [2, 32] ─┐   taken for the tensor
//   rank 1  rm_head.weight [2, 32] ─┴─► Catalog::redundant: proven equal before
//                                       anything is written, or refused
//
// If the two differ, they are slices of unknown cut, and nothing is written. If
// both are zeros, they may be.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt {

// The kind of a problem: rows in an order that follows from a number that no
// file says. Such tensors are shown as they lie, and nothing is written.
inline constexpr std::string_view kRowOrder = "row_order";
// Throws unfaithful_error if the catalog has that problem.
void refuse_row_order(const Catalog& catalog);

// Moves the pieces of other ranks than the first from the tensor to
// catalog.redundant. `ranks`: of each piece.
void set_aside(Tensor& tensor, const std::vector<size_t>& ranks,
               Catalog& catalog);

bool is_unruled(const Redundant& one);

// What says how such a tensor is joined, as a hint.
std::string unruled_hint(const std::string& tensor);

// A tensor of the catalog that has such copies.
struct Unruled {
  const Tensor* tensor = nullptr;
  size_t copies = 0;  // on all ranks
  // Of them differ, by the checksums that their files store; 0: not known.
  size_t different = 0;

  std::string text() const;  // "2 different slices, no rule"
};
// In the catalog's order; from headers alone.
std::vector<Unruled> unruled_of(const Catalog& catalog);

// Leaves out the copies of what the catalog no longer holds.
void drop_unruled(Catalog& catalog);

}  // namespace ckpt
