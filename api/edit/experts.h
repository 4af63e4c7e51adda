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
#include <functional>
#include <optional>
#include <set>
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

// What an expert is counted as among those that are kept; nothing if it isn't.
std::optional<uint64_t> new_expert(const std::vector<uint64_t>& kept,
                                   uint64_t expert);

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

// "model.layers.3.mlp.gate.weight" -> "gate", if the module before it is one of
// those that have experts; "" if none is.
std::string_view router_part(std::string_view name,
                             const std::set<std::string, std::less<>>& modules);

// What was done, and what may surprise; "" if nothing does.
struct KeptExperts {
  std::string note, warning;
};

// Of all experts only these stay: tensors of their own, rows of stacked ones
// and of routers, optimizer state, objects. Configurations that go with them
// follow. No byte moves. Throws unfaithful_error where the rest is not a model
// (a router picks more experts than there are), or where it isn't plain what
// belongs to an expert.
KeptExperts keep_experts(Catalog& catalog, const std::string& list,
                         Edits& edits);

// How many experts the configurations beside the tensors speak of; 0 if none
// does. Throws unfaithful_error if they speak of several numbers.
uint64_t experts_in_config(Catalog& catalog);

// They say as many as are kept, and modules that are quantized in their own way
// have the experts' new numbers. Throws unfaithful_error if the router picks
// more of them, if its groups don't divide them, or if config.json has no
// number to change. Returns a warning if a group has other experts than before.
std::string follow_experts(Catalog& catalog, uint64_t before,
                           const std::vector<uint64_t>& kept);

}  // namespace ckpt::library
