// SPDX-License-Identifier: Apache-2.0
// The steps of family rules, applied to views (docs/formats/dialects.md calls
// them operations): from hf tensors to another dialect, and back.
//
//   t                 [out, in] ─► [in, out]
//   cat               [gate; up]
//   qkv               Q, K, V ─► for each group of heads: its q heads, k, v
//   rope_interleave   half-split rotary rows ─► pairs
//   add               w ─► w + 1
//   decay             log(-a) ─► a; only these two compute
//   …
//
// All are invertible; `add` and `decay` up to rounding.
#pragma once

#include <optional>
#include <vector>

#include "convert/rules/instances.h"
#include "models/view.h"

namespace ckpt::families {

// The dialect's tensor from hf's, in the rule's order. Constants get a file in
// `catalog`, and `dtype`. Throws unfaithful_error for shapes that the family's
// numbers don't explain.
View forward(const Instance& instance, std::vector<View> hf,
             const Numbers& numbers, Catalog& catalog, DType dtype);

// hf's tensors from the dialect's. For a rule with `index` or `part`, one slice
// of the hf tensor: number slice_of(…) of those to join. None for a constant.
std::vector<View> backward(const Instance& instance, const View& target,
                           const Numbers& numbers);

// The number of the slice of its hf tensor that the rule takes, or nothing if
// it takes all of it.
std::optional<uint64_t> slice_of(const Instance& instance,
                                 const Numbers& numbers);
bool takes_slice(const Rule& rule);
// The hf tensor from all its slices, in order. Throws unfaithful_error if some
// are missing.
View joined(const Instance& instance, const std::vector<View>& slices,
            const Numbers& numbers);
// True if the dialect's tensor has keys or values that hf's model makes itself.
bool drops_rows(const Rule& rule);
// The value of every element, if the rule makes the tensor from nothing.
std::optional<double> constant_of(const Rule& rule);
// True if the arrangement stays: pieces can be used unchanged.
bool is_copy(const Rule& rule);

}  // namespace ckpt::families
