// SPDX-License-Identifier: Apache-2.0
// --experts: makes configurations say how many experts are kept.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "api/edit/config_edit.h"
#include "api/edit/experts.h"
#include "api/edit/quantized_modules.h"
#include "ckpt/error.h"
#include "models/defaults.h"

namespace ckpt::library {
namespace {

using Table = ConfigTable;

constexpr std::string_view kExperts[] = {"num_experts", "num_local_experts",
                                         "n_routed_experts", "moe_num_experts",
                                         "num_routed_experts"};
constexpr std::string_view kPicked[] = {"num_experts_per_tok",
                                        "num_experts_per_token",
                                        "experts_per_token",
                                        "moe_topk",
                                        "moe_top_k",
                                        "top_k_experts",
                                        "moe_k",
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

// The same for a router: where a config.json has none of the keys, what its
// class takes.
template <size_t N>
std::optional<uint64_t> most_said(const Table& table,
                                  const std::string_view (&words)[N]) {
  if (const auto said = most(table, words)) return said;
  const auto type = table.find("model_type");
  if (type == table.end() || !type->is_string() ||
      std::ranges::any_of(
          words, [&](std::string_view key) { return table.contains(key); }))
    return std::nullopt;
  return most(Table(families::hf_defaults(type->get<std::string>())), words);
}

// Checks a table that a router reads: enough experts must be kept for it.
void check(const Table& table, const std::string& path, uint64_t kept) {
  const uint64_t picked = most_said(table, kPicked).value_or(1);
  if (picked > kept)
    throw unfaithful_error({path, {}},
                           "--experts keeps {}, the router picks {} for each "
                           "token",
                           kept, picked)
        .with_hint(fmt::format("keep {} at least", picked));
  const uint64_t groups = most_said(table, kGroups).value_or(1);
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
      most_said(table, kPickedGroups).value_or(groups) * (kept / groups);
  if (picked > reached)
    throw unfaithful_error({path, {}},
                           "--experts keeps {}: the groups that the router "
                           "picks have {} experts, it picks {}",
                           kept, reached, picked);
}

class Following {
 public:
  Following(uint64_t before, const std::vector<uint64_t>& kept)
      : before_(before), kept_(kept) {}

  // True if anything changed.
  bool change(Table& config, const std::string& path);
  // True for a config.json without a number that could be changed.
  bool silent() const { return !counted_; }
  // An expert that is now in another of the router's groups than before.
  std::optional<uint64_t> moved() const { return moved_; }

 private:
  void find_moved(const Table& table);
  bool change_count(Table& value) const;

  const uint64_t before_;
  const std::vector<uint64_t>& kept_;
  bool counted_ = false;
  std::optional<uint64_t> moved_;
};

bool Following::change_count(Table& value) const {
  if (value == before_) {
    value = kept_.size();
    return true;
  }
  if (!value.is_array()) return false;
  for (Table& one : value)
    if (one == before_) one = kept_.size();
  return true;
}

void Following::find_moved(const Table& table) {
  const uint64_t groups = most_said(table, kGroups).value_or(1);
  if (groups == 1 || before_ % groups != 0) return;
  for (size_t i = 0; i < kept_.size() && !moved_; ++i)
    if (kept_[i] / (before_ / groups) != i / (kept_.size() / groups))
      moved_ = kept_[i];
}

bool Following::change(Table& config, const std::string& path) {
  bool changed = false;
  visit(config, [&](Table& table) {
    bool mixture = false;
    for (auto& [key, value] : table.items()) {
      if (key == "quantization_config")
        changed = follow_expert_modules(value, kept_, path) || changed;
      if (!among(kExperts, key)) continue;
      mixture = mixture || !counts_in(value).empty();
      changed = change_count(value) || changed;
    }
    if (!mixture) return;
    counted_ = true;
    check(table, path, kept_.size());
    find_moved(table);
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

std::string follow_experts(Catalog& catalog, uint64_t before,
                           const std::vector<uint64_t>& kept) {
  Following following(before, kept);
  for (Sidecar& sidecar : catalog.sidecars)
    if (is_config_file(sidecar)) {
      const bool read = !config_of(sidecar).is_discarded();
      edit_config(sidecar, [&](Table& table) {
        return following.change(table, sidecar.path);
      });
      if (read && following.silent())
        throw unfaithful_error({sidecar.path, {}},
                               "--experts keeps {} of {}, and no key of "
                               "config.json that is known says how many there "
                               "are",
                               kept.size(), before)
            .with_hint(fmt::format("known are {}", fmt::join(kExperts, ", ")));
    }
  for (Object& object : catalog.objects)
    if (is_config_object(object))
      edit_config(object, [&](Table& table) {
        return following.change(table, catalog.path);
      });
  const auto moved = following.moved();
  if (!moved) return {};
  return fmt::format(
      "--experts: the router's groups have other experts than before: expert "
      "{} is in another one now; as many of each group keep them",
      *moved);
}

}  // namespace ckpt::library
