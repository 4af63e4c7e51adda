// SPDX-License-Identifier: Apache-2.0
// Rows of Megatron-Bridge's adapters that depend on the number of ranks.
//
//   ….linear_fc1.adapter.adapter_gate.linear_out.weight   [N, r]
//   ….linear_fc1.adapter.adapter_up.linear_out.weight
//
// Bridge cuts each rank's part in two halves, as it cuts [gate; up]. A
// distributed checkpoint has the first halves of all ranks, then the second
// halves:
//
//   2 ranks   rank 0: a b, rank 1: c d    a c b d
//
// Another number of ranks gets other rows from the same file.
#pragma once

#include <cstdint>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "models/view.h"

namespace ckpt::megatron {

// True for such a part of a module's adapter: "adapter_gate", and not
// `linear_in`.
bool is_halved_part(std::string_view part, bool in);

// The rows of one adapter as `ranks` have them, or `back` from that. Axes of
// layers may precede them.
families::View halved(const families::View& rows, uint64_t ranks, bool back);
// Throws unfaithful_error if the rows don't divide, or if `ranks` is 0.
void check_halves(const Catalog& source, const Tensor& tensor, uint64_t ranks);

// The number of tensor-parallel ranks that adapters were written for, from the
// args or Bridge's run_config.yaml; 1 for ranks' files, whose rows are in their
// own order; 0 if unknown.
uint64_t adapter_ranks(const Catalog& source);
// Writes that number into the args.
void note_adapter_ranks(Catalog& source, uint64_t ranks);

// Arranges the rows for the target's ranks, as a writer of distributed
// checkpoints does. Throws unfaithful_error if that can't be known.
void arrange_adapters(Catalog& source, const Layout& layout);
// For ranks' files, which Bridge does not write: throws unfaithful_error.
void refuse_adapters(const Catalog& source);
// The same for attention with a name for each kind of layer (Gemma 4).
void refuse_kinds(const Catalog& source);

}  // namespace ckpt::megatron
