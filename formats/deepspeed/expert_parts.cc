// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "ckpt/error.h"
#include "formats/deepspeed/apart.h"
#include "formats/deepspeed/expert_names.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {
namespace {

uint64_t count_of(const OptimRank& rank, size_t group) {
  const auto& counts = rank.partition_counts;
  if (counts.empty()) return 0;
  return group < counts.size() ? counts[group] : counts.back();
}

// How many experts of each layer a rank holds.
std::map<std::string, uint64_t> held(const std::vector<NamedShape>& group) {
  std::map<std::string, std::set<uint64_t>> experts;
  for (const NamedShape& one : group)
    if (const auto name = parse_expert_name(one.name))
      experts[std::string(name->layer)].insert(name->expert);
  std::map<std::string, uint64_t> counts;
  for (const auto& [layer, numbers] : experts) counts[layer] = numbers.size();
  return counts;
}

// Some groups of a column, of some of its ranks.
class Part {
 public:
  Part(const Column& from, uint64_t ranks, uint64_t every, uint64_t first)
      : from_(from), ranks_(ranks), every_(every), first_(first) {
    ModelRank model;
    model.path = from.model().path;
    model.mp = from.model().mp;
    model.has_shapes = true;
    column_.models.push_back(std::move(model));
    for (uint64_t d = first; d < from.optims.size(); d += every) {
      OptimRank& rank = column_.optims.emplace_back();
      rank.path = from.optims[d].path;
      rank.stage = from.optims[d].stage;
      rank.partition_counts = {ranks};
    }
  }

  void add(size_t group) {
    std::vector<NamedShape> shapes = from_.model().groups[group];
    const auto counts = held(shapes);
    for (NamedShape& one : shapes) one.name = global(one.name, counts);
    column_.models[0].groups.push_back(std::move(shapes));
    for (uint64_t r = 0; r < ranks_; ++r) {
      const OptimRank& rank = from_.optims[first_ + r * every_];
      column_.optims[r].groups.push_back(rank.groups.at(group));
      if (rank.mappings.empty()) continue;
      auto& map = column_.optims[r].mappings.emplace_back();
      for (const auto& [name, fragment] : rank.mappings.at(group))
        map.emplace(global(name, counts), fragment);
    }
  }

  bool any() const { return !column_.models[0].groups.empty(); }
  Column take() { return std::move(column_); }

 private:
  std::string global(const std::string& name,
                     const std::map<std::string, uint64_t>& counts) const {
    const auto one = parse_expert_name(name);
    if (every_ == 1 || !one) return name;
    const auto here = counts.find(std::string(one->layer));
    if (here == counts.end() || one->expert >= here->second)
      throw unfaithful_error({from_.model().path, text::printable(name)},
                             "is an expert that no other part of its rank "
                             "numbers in this way");
    return expert_name(one->layer, first_ * here->second + one->expert,
                       one->rest);
  }

  const Column& from_;
  const uint64_t ranks_, every_, first_;
  Column column_;
};

// Over how many sets of ranks a group is cut: 1, or the expert-parallel size.
uint64_t sets_of(const Column& column, size_t group) {
  const uint64_t all = column.optims.size();
  const uint64_t ranks = count_of(column.optims[0], group);
  if (ranks == all || ranks == 0) return 1;
  const bool experts = std::ranges::all_of(
      column.model().groups[group], [](const NamedShape& one) {
        return parse_expert_name(one.name).has_value();
      });
  if (all % ranks != 0 || !experts || column.optims[0].stage == 3)
    throw unfaithful_error({column.optims[0].path, {}},
                           "group {} is cut over {} of {} ranks, and is not "
                           "of experts alone",
                           group, ranks, all);
  return all / ranks;
}

}  // namespace

std::vector<std::vector<Column>> expert_parts(std::span<const Column> stage) {
  std::set<uint64_t> sizes;
  const auto groups = [](const Column& column) {
    return std::min(column.model().groups.size(),
                    column.optims[0].groups.size());
  };
  for (const Column& column : stage)
    for (size_t g = 0; g < groups(column); ++g)
      sizes.insert(sets_of(column, g));
  std::vector<std::vector<Column>> parts;
  for (const uint64_t sets : sizes)
    for (uint64_t set = 0; set < sets; ++set) {
      std::vector<Column> columns;
      for (const Column& column : stage) {
        Part part(column, column.optims.size() / sets, sets, set);
        for (size_t g = 0; g < groups(column); ++g)
          if (sets_of(column, g) == sets) part.add(g);
        columns.push_back(part.take());
      }
      parts.push_back(std::move(columns));
    }
  return parts;
}

}  // namespace ckpt::deepspeed
