// SPDX-License-Identifier: Apache-2.0
// --experts: keeps some experts of a mixture, renumbered from 0.
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

// No model has more: a bound on what is read or typed.
inline constexpr uint64_t kMostExperts = 100'000;

// "0-3,8" -> {0, 1, 2, 3, 8}: ascending. Throws usage_error for an expert named
// twice.
std::vector<uint64_t> parse_experts(const std::string& list);

// An expert's new number; nothing if it is not kept.
std::optional<uint64_t> new_expert(const std::vector<uint64_t>& kept,
                                   uint64_t expert);

// What a name says about experts.
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

// What was done, and a warning; "" if there is none.
struct KeptExperts {
  std::string note, warning;
};

// Keeps only these experts: their tensors, their rows of stacked tensors and
// routers, optimizer state, objects; configurations follow. No byte moves.
// Throws unfaithful_error if the rest is not a model (a router picks more
// experts than remain), or if it is unclear what belongs to an expert.
KeptExperts keep_experts(Catalog& catalog, const std::string& list,
                         Edits& edits);

// The number of experts in the configurations; 0 if none says it. Throws
// unfaithful_error if they disagree.
uint64_t experts_in_config(Catalog& catalog);

// Sets it to the number that is kept, and renumbers experts in the names of
// quantized modules. Throws unfaithful_error if the router picks more, if its
// groups don't divide them, or if config.json has no number to change. Returns
// a warning if a group now has other experts.
std::string follow_experts(Catalog& catalog, uint64_t before,
                           const std::vector<uint64_t>& kept);

}  // namespace ckpt::library
