// SPDX-License-Identifier: Apache-2.0
// Rows of Megatron-Bridge's adapters that depend on the number of ranks.
//
//   ….linear_fc1.adapter.adapter_gate.linear_out.weight   [N, r]
//   ….linear_fc1.adapter.adapter_up.linear_out.weight
//
// Bridge cuts what each rank has of them in two halves, as it cuts [gate; up];
// a distributed checkpoint has the first halves of all ranks, then the second
// ones:
//
//   2 ranks   rank 0: a b, rank 1: c d    a c b d
//
// Another number of ranks that reads the same file gets other rows.
#pragma once

#include <cstdint>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "models/view.h"

namespace ckpt::megatron {

// Of a part of a module's adapter: "adapter_gate", and not `linear_in`.
bool is_halved_part(std::string_view part, bool in);

// The rows of one adapter as `ranks` have them, or `back` from that. Axes of
// layers may stand before them.
families::View halved(const families::View& rows, uint64_t ranks, bool back);
// Throws unfaithful_error if the rows don't divide, or if `ranks` is 0.
void check_halves(const Catalog& source, const Tensor& tensor, uint64_t ranks);

// The tensor-parallel ranks that adapters were written for: by the args, or
// Bridge's run_config.yaml. Ranks' files have rows in their own order: 1. 0 if
// nothing tells.
uint64_t adapter_ranks(const Catalog& source);
// Says so in the args.
void note_adapter_ranks(Catalog& source, uint64_t ranks);

// Arranges the rows for the target's ranks, as a writer of distributed
// checkpoints does. Throws unfaithful_error where that can't be known.
void arrange_adapters(Catalog& source, const Layout& layout);
// For ranks' files, which Bridge does not write: throws unfaithful_error.
void refuse_adapters(const Catalog& source);

}  // namespace ckpt::megatron
