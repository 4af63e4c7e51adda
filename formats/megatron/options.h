// SPDX-License-Identifier: Apache-2.0
// What is asked of Megatron's formats besides their topology. Empty, or 0: as
// in the source's args, else Megatron's default.
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
  uint64_t vocab_size = 0;      // rows of the vocabulary in use
  uint64_t vocab_multiple = 0;  // make_vocab_size_divisible_by
  // Layers of each pipeline stage. With virtual stages, layers of each chunk:
  // the first chunks of all stages come first.
  std::vector<uint64_t> stage_layers;
  uint32_t vpp = 0;              // virtual stages of each pipeline rank
  uint32_t etp = 0;              // tensor-parallel ranks of experts
  std::string transformer_impl;  // "local" or "transformer_engine"
  // The sharding type of the optimizer's state: "fully_reshardable", or "" for
  // the source's.
  std::string optimizer;
};

// Parses the options of a layout. Throws usage_error for a malformed one.
Wanted wanted_of(const Layout& layout);

// The options of ranks' files, and of distributed checkpoints.
std::vector<FormatOption> legacy_options();
std::vector<FormatOption> dist_options();

// Takes expert ranks from the data-parallel ones, and makes the number of
// pipeline stages fit the cut of the layers (Traits::settle).
void settle_options(const Catalog& source, const formats::Asked& asked,
                    Layout& layout);

}  // namespace ckpt::megatron
