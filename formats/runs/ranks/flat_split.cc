// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks/flat_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

#include "formats/runs/find/pattern.h"
#include "formats/runs/optimizer/split.h"
#include "lib/cuts.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using Lengths = std::vector<uint64_t>;  // elements, by part

// verl's save_lora_only leaves the base out of the model's files, but not out
// of the optimizer.
bool is_adapter_alone(const ParameterOrder& order) {
  return std::ranges::all_of(order.parameters, [](const Parameter& one) {
    return one.name.find("lora_") != one.name.npos;
  });
}

class Numberings {
 public:
  Numberings(const RankCatalog& ranks, const Groups& groups,
             const ParameterOrder& order,
             const std::vector<std::vector<FlatUnit>>& ways)
      : ranks_(ranks), groups_(groups), order_(order), ways_(ways) {
    for (const RankCatalog::Share& share : ranks.shares) note(share);
  }

  std::optional<Numbering> only(std::string& why_not) {
    bool stateless = true;  // whether the model has what has no states
    for (const bool all : {true, false}) {
      if (!all && !is_adapter_alone(order_)) break;
      stateless = all;
      for (const auto& way : ways_) {
        try_units(way, all);
        try_parameters(way, all);
      }
      if (found_ || many_) break;
    }
    if (found_ && found_->either && !stateless) settle_form(*found_);
    if (found_ && !many_) return found_;
    why_not = fmt::format("its numbers are in {} and fit the model's {} in {}",
                          text::counted(groups_.size(), "group"),
                          stateless ? "parameters" : "adapters",
                          many_ ? "more ways than one" : "no way");
    return std::nullopt;
  }

 private:
  void note(const RankCatalog::Share& share) {
    const Tensor& tensor = ranks_.catalog.tensors[share.tensor];
    const auto number = whole_number(tensor.param);
    if (!number) return;
    has_state_[*number];
    if (!share.run || !tells_shape(tensor)) return;
    Lengths lengths(ranks_.shards.count);
    for (size_t r = 0; r < share.lengths.size(); ++r) {
      uint64_t& length = lengths[ranks_.shards.of_rank[r]];
      length = std::max(length, share.lengths[r].value_or(0));
    }
    has_state_[*number] = std::move(lengths);
  }

  // Lengths as a shape, by which only_split() compares.
  Shape shape_of(const Lengths& lengths) {
    return Shape{shapes_.emplace(lengths, shapes_.size()).first->second};
  }

  void try_units(const std::vector<FlatUnit>& way, bool all) {
    std::vector<Parameter> candidates;
    candidates.reserve(way.size());
    const uint64_t parts = ranks_.shards.count;
    for (const FlatUnit& unit : way)
      candidates.push_back(
          {.name = unit.name,
           .shape = shape_of(
               Lengths(parts, cuts::chunk_size(unit.elements, parts)))});
    try_split(candidates,
              {.units = &way,
               .original = false,
               .either = false,
               .owner = {},
               .groups = {}},
              all);
  }

  void try_parameters(const std::vector<FlatUnit>& way, bool all) {
    const uint64_t parts = ranks_.shards.count;
    std::vector<Lengths> lengths(order_.parameters.size());
    for (const FlatUnit& unit : way)
      for (uint64_t part = 0; part < parts; ++part) {
        const auto ranges = aligned_part(unit, part, parts);
        for (size_t p = 0; p < ranges.size(); ++p)
          lengths[unit.numbers[p]].push_back(ranges[p].end - ranges[p].begin);
      }
    std::vector<Parameter> candidates = order_.parameters;
    for (size_t i = 0; i < candidates.size(); ++i)
      candidates[i].shape = shape_of(lengths[i]);
    try_split(candidates,
              {.units = &way,
               .original = true,
               .either = false,
               .owner = {},
               .groups = {}},
              all);
  }

  // `all`: numbers without states are in the model, too.
  void try_split(const std::vector<Parameter>& candidates, Numbering numbering,
                 bool all) {
    std::vector<std::vector<Wanted>> wanted;
    std::vector<std::vector<uint64_t>> numbers;
    size_t count = 0;
    for (const Group& group : groups_) {
      auto& shapes = wanted.emplace_back();
      auto& mine = numbers.emplace_back();
      for (const uint64_t number : group.numbers) {
        const auto known = has_state_.find(number);
        if (known == has_state_.end() && !all) continue;
        mine.push_back(number);
        shapes.emplace_back();
        if (known != has_state_.end() && known->second)
          shapes.back() = shape_of(*known->second);
      }
      count += mine.size();
    }
    if (!all && count != candidates.size()) return;
    const Split split = only_split(candidates, wanted);
    if (split.ways == Ways::kMany || split.ways == Ways::kTooMany) many_ = true;
    if (split.ways != Ways::kOne) return;
    for (size_t g = 0; g < numbers.size(); ++g)
      for (size_t n = 0; n < numbers[g].size(); ++n)
        if (has_state_.contains(numbers[g][n]))
          numbering.owner.emplace(numbers[g][n], split.groups[g][n]);
    if (numbering.owner.size() != has_state_.size()) return;
    numbering.groups = split.groups;
    if (found_ && parameters_of(*found_) != parameters_of(numbering))
      many_ = true;
    if (!found_)
      found_ = std::move(numbering);
    else if (found_->original != numbering.original)
      found_->either = true;
  }

  // Adapters alone, by the numbers between theirs: as parameters, each module's
  // base weight comes before its adapter; as units, each layer comes once.
  void settle_form(Numbering& numbering) const {
    std::set<std::string> modules;
    for (const Parameter& one : order_.parameters)
      modules.insert(one.name.substr(0, one.name.find("lora_")));
    const uint64_t between = numbering.owner.rbegin()->first -
                             numbering.owner.begin()->first + 1 -
                             numbering.owner.size();
    if (between + 1 == modules.size()) return;
    numbering.either = false;
    if (between + 1 < modules.size()) return;  // found as units first
    numbering.original = true;
    std::map<std::string_view, size_t> places;
    for (size_t i = 0; i < order_.parameters.size(); ++i)
      places.emplace(order_.parameters[i].name, i);
    const auto place_of = [&](size_t unit) {
      return places.at((*numbering.units)[unit].parameters[0].name);
    };
    for (auto& [number, place] : numbering.owner) place = place_of(place);
    for (auto& group : numbering.groups)
      for (size_t& place : group) place = place_of(place);
  }

  // The places in the order of each number's parameters.
  static std::vector<std::vector<uint64_t>> parameters_of(
      const Numbering& numbering) {
    std::vector<std::vector<uint64_t>> all;
    for (const auto& [number, place] : numbering.owner)
      all.push_back(numbering.original ? std::vector<uint64_t>{place}
                                       : (*numbering.units)[place].numbers);
    return all;
  }

  const RankCatalog& ranks_;
  const Groups& groups_;
  const ParameterOrder& order_;
  const std::vector<std::vector<FlatUnit>>& ways_;
  std::map<uint64_t, std::optional<Lengths>> has_state_;  // by number
  std::map<Lengths, uint64_t> shapes_;
  std::optional<Numbering> found_;
  bool many_ = false;
};

}  // namespace

std::optional<Numbering> only_numbering(
    const RankCatalog& ranks, const Groups& groups, const ParameterOrder& order,
    const std::vector<std::vector<FlatUnit>>& ways, std::string& why_not) {
  return Numberings(ranks, groups, order, ways).only(why_not);
}

std::vector<std::vector<Parameter>> parameters_of_groups(
    const Numbering& numbering, const ParameterOrder& order) {
  std::vector<std::vector<Parameter>> all;
  for (const std::vector<size_t>& places : numbering.groups) {
    auto& group = all.emplace_back();
    for (const size_t place : places) {
      const auto parameters =
          numbering.original ? std::span(order.parameters).subspan(place, 1)
                             : std::span((*numbering.units)[place].parameters);
      group.insert(group.end(), parameters.begin(), parameters.end());
    }
  }
  return all;
}

std::vector<FlatUnit> units_by_number(const Numbering& numbering) {
  if (!numbering.original) {
    const uint64_t last =
        numbering.owner.empty() ? 0 : numbering.owner.rbegin()->first;
    std::vector<FlatUnit> units(last + 1);
    for (const auto& [number, place] : numbering.owner)
      units[number] = (*numbering.units)[place];
    return units;
  }
  std::map<uint64_t, uint64_t> numbers;  // by place
  for (const auto& [number, place] : numbering.owner)
    numbers.emplace(place, number);
  std::vector<FlatUnit> units = *numbering.units;
  for (FlatUnit& unit : units)
    for (uint64_t& number : unit.numbers) {
      const auto known = numbers.find(number);
      number = known == numbers.end() ? UINT64_MAX : known->second;
    }
  return units;
}

}  // namespace ckpt::runs
