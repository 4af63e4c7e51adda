// SPDX-License-Identifier: Apache-2.0
// --experts: some of the experts of a mixture, counted anew from 0.
//
//   model.layers.3.mlp.experts.5.up_proj.weight   a number in the name
//   decoder.layers.3.mlp.experts.linear_fc1.weight5             … at its end
//   model.layers.3.mlp.experts.gate_up_proj [E, …]              rows of an axis
//   decoder.layers.mlp.experts.experts.linear_fc1.weight [L, E, …]
//   blocks.3.feed_forward_moe.experts.mlp.w1 [E * n, …]         blocks of rows
//   model.layers.3.mlp.gate.weight [E, width]                   the router
//   └──────────── module ─┘
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/edits.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

// No model has more; a bound for what is read or typed.
inline constexpr uint64_t kMostExperts = 100'000;

// "0-3,8" -> {0, 1, 2, 3, 8}: ascending. Throws a usage_error for an expert
// that is named twice.
std::vector<uint64_t> parse_experts(const std::string& list);

// What a name says of experts.
struct ExpertName {
  enum class What : uint8_t { kNone, kNumbered, kStacked };
  What what = What::kNone;
  std::string_view module;  // what the experts and their router are parts of
  uint64_t expert = 0;      // kNumbered …
  size_t begin = 0;         // … and where in the name its digits are
  size_t end = 0;
};
ExpertName parse_expert_name(std::string_view name);

// Of all experts only these stay: tensors of their own, rows of stacked ones
// and of routers, optimizer state, objects. Configurations that go with them
// follow. No byte moves. Returns what was done. Throws unfaithful_error where
// the rest is not a model (a router picks more experts than there are), or
// where it isn't plain what belongs to an expert.
std::string keep_experts(Catalog& catalog, const std::string& list,
                         Edits& edits);

// How many experts the configurations beside the tensors speak of; 0 if none
// does. Throws unfaithful_error if they speak of several numbers.
uint64_t experts_in_config(Catalog& catalog);

// They say as many as are kept. Throws unfaithful_error if the router picks
// more of them, or if its groups don't divide them.
void follow_experts(Catalog& catalog, uint64_t before, uint64_t kept);

}  // namespace ckpt::library
