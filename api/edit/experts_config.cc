// SPDX-License-Identifier: Apache-2.0
// --experts: configurations say as many experts as are kept.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "api/edit/config_edit.h"
#include "api/edit/experts.h"
#include "ckpt/error.h"

namespace ckpt::library {
namespace {

using Table = ConfigTable;

constexpr std::string_view kExperts[] = {"num_experts", "num_local_experts",
                                         "n_routed_experts", "moe_num_experts",
                                         "num_routed_experts"};
constexpr std::string_view kPicked[] = {
    "num_experts_per_tok", "num_experts_per_token", "moe_topk",
    "moe_top_k",           "top_k_experts",         "moe_k",
    "moe_router_topk"};
constexpr std::string_view kGroups[] = {"n_group", "moe_router_num_groups",
                                        "num_expert_group"};
constexpr std::string_view kPickedGroups[] = {"topk_group",
                                              "moe_router_group_topk"};

template <size_t N>
bool among(const std::string_view (&words)[N], std::string_view word) {
  return std::ranges::find(words, word) != std::end(words);
}

bool is_count(const Table& value) {
  return value.is_number_integer() && value > 0 && value <= kMostExperts;
}

// A number, or a list with one for each layer.
std::set<uint64_t> counts_in(const Table& value) {
  std::set<uint64_t> counts;
  if (is_count(value)) counts.insert(value.get<uint64_t>());
  if (value.is_array())
    for (const Table& one : value)
      if (is_count(one)) counts.insert(one.get<uint64_t>());
  return counts;
}

// All objects of a configuration: text_config, OLMo-core's model.block …
void visit(Table& table, const std::function<void(Table&)>& see,
           int depth = 0) {
  if (!table.is_object() || depth > 16) return;
  see(table);
  for (auto& [key, value] : table.items()) visit(value, see, depth + 1);
}

void add_counts(Table& table, std::set<uint64_t>& counts) {
  for (const std::string_view key : kExperts)
    if (const auto found = table.find(key); found != table.end())
      counts.merge(counts_in(*found));
}

template <size_t N>
std::optional<uint64_t> most(const Table& table,
                             const std::string_view (&words)[N]) {
  std::optional<uint64_t> number;
  for (const std::string_view key : words)
    if (const auto found = table.find(key); found != table.end())
      for (const uint64_t count : counts_in(*found))
        number = std::max(number.value_or(0), count);
  return number;
}

// A table that a router reads: what is kept has to be enough for it.
void check(const Table& table, const std::string& path, uint64_t kept) {
  const uint64_t picked = most(table, kPicked).value_or(1);
  if (picked > kept)
    throw unfaithful_error({path, {}},
                           "--experts keeps {}, the router picks {} for each "
                           "token",
                           kept, picked)
        .with_hint(fmt::format("keep {} at least", picked));
  const uint64_t groups = most(table, kGroups).value_or(1);
  if (groups == 1) return;
  // The router ranks groups by the sum of their two best experts.
  if (kept % groups != 0 || kept / groups < 2)
    throw unfaithful_error({path, {}},
                           "--experts keeps {}, the router has {} groups of "
                           "two or more experts each",
                           kept, groups)
        .with_hint(fmt::format("keep a multiple of {}, {} at least", groups,
                               2 * groups));
  const uint64_t reached =
      most(table, kPickedGroups).value_or(groups) * (kept / groups);
  if (picked > reached)
    throw unfaithful_error({path, {}},
                           "--experts keeps {}: the groups that the router "
                           "picks have {} experts, it picks {}",
                           kept, reached, picked);
}

// Whether anything changed.
bool follow(Table& config, const std::string& path, uint64_t before,
            uint64_t kept) {
  bool changed = false;
  visit(config, [&](Table& table) {
    bool mixture = false;
    for (auto& [key, value] : table.items()) {
      if (!among(kExperts, key)) continue;
      mixture = mixture || !counts_in(value).empty();
      if (value == before) {
        value = kept;
        changed = true;
      } else if (value.is_array()) {
        for (Table& one : value)
          if (one == before) one = kept;
        changed = true;
      }
    }
    if (mixture) check(table, path, kept);
  });
  return changed;
}

}  // namespace

uint64_t experts_in_config(Catalog& catalog) {
  take_config(catalog);
  std::set<uint64_t> counts;
  const auto add = [&](Table table) {
    visit(table, [&](Table& one) { add_counts(one, counts); });
  };
  for (const Sidecar& sidecar : catalog.sidecars)
    if (is_config_file(sidecar))
      if (Table config = config_of(sidecar); !config.is_discarded())
        add(std::move(config));
  for (const Object& object : catalog.objects)
    if (is_config_object(object)) add(config_of(object));
  if (counts.size() > 1)
    throw unfaithful_error({catalog.path, {}},
                           "--experts: the configuration speaks of {} experts",
                           fmt::join(counts, " and of "));
  return counts.empty() ? 0 : *counts.begin();
}

void follow_experts(Catalog& catalog, uint64_t before, uint64_t kept) {
  for (Sidecar& sidecar : catalog.sidecars)
    if (is_config_file(sidecar))
      edit_config(sidecar, [&](Table& table) {
        return follow(table, sidecar.path, before, kept);
      });
  for (Object& object : catalog.objects)
    if (is_config_object(object))
      edit_config(object, [&](Table& table) {
        return follow(table, catalog.path, before, kept);
      });
}

}  // namespace ckpt::library
