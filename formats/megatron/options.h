// SPDX-License-Identifier: Apache-2.0
// What Megatron's formats are asked for beside their topology. Nothing, or 0:
// as the source's args have it, else Megatron's habit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/layout.h"
#include "formats/traits.h"

namespace ckpt::megatron {

inline constexpr std::string_view kFullyReshardable = "fully_reshardable";

// Throws usage_error for an unknown value of --optim.
void check_optimizer_type(std::string_view type);

struct Wanted {
  uint64_t vocab_size = 0;      // rows of the vocabulary that are in use
  uint64_t vocab_multiple = 0;  // make_vocab_size_divisible_by
  // Layers of each pipeline stage; with virtual stages of each chunk, the
  // first chunks of all stages first.
  std::vector<uint64_t> stage_layers;
  uint32_t vpp = 0;              // virtual stages of each pipeline rank
  uint32_t etp = 0;              // tensor-parallel ranks of experts
  std::string transformer_impl;  // "local" or "transformer_engine"
  // The sharding type of the optimizer's state ("fully_reshardable"; "" as in
  // the source).
  std::string optimizer;
};

// From the options of a layout. Throws a usage_error for a malformed one.
Wanted wanted_of(const Layout& layout);

// Of ranks' files, and of distributed checkpoints.
std::vector<FormatOption> legacy_options();
std::vector<FormatOption> dist_options();

// Expert ranks are taken from the data-parallel ones; how the pipeline is cut
// fits the number of its stages (Traits::settle).
void settle_options(const Catalog& source, const formats::Asked& asked,
                    Layout& layout);

}  // namespace ckpt::megatron
