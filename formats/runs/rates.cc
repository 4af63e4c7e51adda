// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/pattern.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

using Rates = std::vector<double>;  // of each group

// Nothing if any is no plain number, but a tensor or a proxy of one.
std::optional<Rates> rates_in(const Document& document, Id list,
                              std::string_view key) {
  if (!document.is(list, Type::kList)) return std::nullopt;
  Rates rates;
  for (const Id item : document.items(list)) {
    const auto rate =
        document.as_real(key.empty() ? item : document.find(item, key));
    if (!rate) return std::nullopt;
    rates.push_back(*rate);
  }
  if (rates.empty()) return std::nullopt;
  return rates;
}

// "actor." of "actor.optimizer.param_groups": roles are trained apart.
std::string role_in(std::string_view name, std::string_view word) {
  const size_t at = name.find(word);
  const bool starts = at != name.npos && (at == 0 || name[at - 1] == '.');
  return std::string(starts ? name.substr(0, at) : "");
}

struct Optimizers {
  std::map<std::string, std::vector<Rates>> by_role;
  // "optimizer.param_groups.": DCP has an object for each option of a group.
  std::map<std::string, std::map<uint64_t, std::optional<double>>> apart;

  void take(const Object& object) {
    constexpr std::string_view kGroupsPart = "param_groups";
    constexpr std::string_view kRatePart = ".lr";
    const std::string_view name = object.name;
    const size_t at = name.find(kGroupsPart);
    if (at == name.npos) return;
    const std::string_view rest = name.substr(at + kGroupsPart.size());
    if (rest.empty()) {
      if (auto rates = rates_in(*object.document, object.node, "lr"))
        by_role[role_in(name, "optimizer")].push_back(std::move(*rates));
    } else if (rest.ends_with(kRatePart) && rest.size() > kRatePart.size()) {
      const auto group =
          whole_number(rest.substr(1, rest.size() - kRatePart.size() - 1));
      if (rest[0] == '.' && group)
        apart[std::string(name.substr(0, at))][*group] =
            object.document->as_real(object.node);
    }
  }

  void finish() {
    for (const auto& [name, groups] : apart) {
      Rates rates;
      for (const auto& [number, rate] : groups)
        if (rate && number == rates.size()) rates.push_back(*rate);
      if (rates.size() == groups.size())
        by_role[role_in(name, "optimizer")].push_back(std::move(rates));
    }
    // Accelerate's schedulers don't say whose they are.
    std::vector<Rates> all;
    for (const auto& [role, rates] : by_role)
      all.insert(all.end(), rates.begin(), rates.end());
    if (!all.empty()) by_role[""] = std::move(all);
  }
};

// The state dict of a scheduler in an object: itself, or a value of it
// (verl's extra_state), or one of a list (Lightning's meta.pt).
std::vector<Id> schedulers_in(const Document& document, Id id, int depth = 2) {
  if (document.find(id, "_last_lr") != kNoId) return {id};
  std::vector<Id> found;
  if (depth == 0) return found;
  const auto look = [&](Id inner) {
    for (const Id one : schedulers_in(document, inner, depth - 1))
      found.push_back(one);
  };
  if (document.is(id, Type::kList))
    for (const Id item : document.items(id)) look(item);
  else
    for (const char* key : {"lr_scheduler", "lr_schedulers"})
      if (const Id inner = document.find(id, key); inner != kNoId) look(inner);
  return found;
}

std::string spelled(const Rates& rates) {
  constexpr size_t kMost = 4;
  std::string out;
  for (size_t g = 0; g < std::min(rates.size(), kMost); ++g)
    out += fmt::format("{}{}", g == 0 ? "" : ", ", rates[g]);
  return rates.size() > kMost ? out + " …" : out;
}

}  // namespace

std::vector<Problem> check_rates(const Catalog& catalog) {
  Optimizers optimizers;
  for (const Object& object : catalog.objects)
    if (object.document) optimizers.take(object);
  optimizers.finish();
  std::vector<Problem> problems;
  std::set<std::string> said;  // roles: ranks repeat it
  for (const Object& object : catalog.objects) {
    if (!object.document) continue;
    const size_t dot = object.name.rfind('.');
    const std::string role =
        dot == std::string::npos ? "" : object.name.substr(0, dot + 1);
    const auto mine = optimizers.by_role.find(role);
    if (mine == optimizers.by_role.end()) continue;
    for (const Id scheduler : schedulers_in(*object.document, object.node)) {
      const auto set = rates_in(
          *object.document, object.document->find(scheduler, "_last_lr"), "");
      if (!set) continue;
      const auto alike =
          std::ranges::find(mine->second, set->size(), &Rates::size);
      if (alike == mine->second.end() ||
          std::ranges::find(mine->second, *set) != mine->second.end() ||
          !said.insert(role).second)
        continue;
      problems.push_back(warning(
          "stale_part", {catalog.path, object.name},
          "its scheduler set the learning rate {} last, the {}optimizer's "
          "groups have {}: one of the two is of another save, unless something "
          "else sets the rate",
          spelled(*set), printable(role), spelled(*alike)));
    }
  }
  return problems;
}

}  // namespace ckpt::runs
