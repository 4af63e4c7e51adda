// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/flat_split.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/runs/pattern.h"
#include "formats/runs/split.h"
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
    const uint64_t parts = ranks_.shards.count;
    for (const FlatUnit& unit : way)
      candidates.push_back(
          {.name = unit.name,
           .shape = shape_of(
               Lengths(parts, cuts::chunk_size(unit.elements, parts)))});
    try_split(candidates, {.units = &way, .original = false, .owner = {}}, all);
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
    try_split(candidates, {.units = &way, .original = true, .owner = {}}, all);
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
    if (found_ && parameters_of(*found_) != parameters_of(numbering))
      many_ = true;
    if (!found_) found_ = std::move(numbering);
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
