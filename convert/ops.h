// SPDX-License-Identifier: Apache-2.0
// The steps of family rules, done to views (docs/formats/dialects.md calls them
// operations): what an hf tensor is in another dialect, and back.
//
//   t                 [out, in] ─► [in, out]
//   cat               [gate; up]
//   qkv               Q, K, V ─► for each group of heads: its q heads, k, v
//   rope_interleave   half-split rotary rows ─► pairs
//   add               w ─► w + 1, the one step that computes
//   …
//
// All can be undone; `add` up to the rounding of the dtype.
#pragma once

#include <optional>
#include <vector>

#include "convert/instances.h"
#include "models/view.h"

namespace ckpt::families {

// The tensor of the dialect from those of hf, in the rule's order. Constants
// get a file in `catalog`, and `dtype`. Throws unfaithful_error for shapes
// that the family's numbers don't explain.
View forward(const Instance& instance, std::vector<View> hf,
             const Numbers& numbers, Catalog& catalog, DType dtype);

// The tensors of hf from the dialect's. For a rule with `index` it is one
// slice of the hf tensor: number instance.index[…] of those to be stacked.
// None for a constant.
std::vector<View> backward(const Instance& instance, const View& target,
                           const Numbers& numbers);

// The index that numbers the slices of an hf tensor ("e"), or nothing.
std::optional<std::string> stacked_by(const Rule& rule);
// The value that every element has, if the rule makes it of nothing.
std::optional<double> constant_of(const Rule& rule);
// Names and arrangement stay: pieces can be taken over as they are.
bool is_copy(const Rule& rule);

}  // namespace ckpt::families
