// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer/split.h"

#include <algorithm>
#include <map>

namespace ckpt::runs {
namespace {

// The most search states to keep.
constexpr size_t kMostStates = 4'000'000;

using Position = std::vector<uint32_t>;     // how many of each group are taken
using Layer = std::map<Position, uint8_t>;  // ways to get there, at most 2

}  // namespace

Split only_split(std::span<const Parameter> order,
                 const std::vector<std::vector<Wanted>>& groups,
                 bool (*allowed)(size_t, const Parameter&)) {
  size_t wanted = 0;
  for (const auto& group : groups) wanted += group.size();
  if (wanted > order.size()) return {};
  const auto fits = [&](size_t g, uint32_t at, const Parameter& parameter) {
    if (at >= groups[g].size()) return false;
    const Wanted& shape = groups[g][at];
    return (!shape || *shape == parameter.shape) &&
           (allowed == nullptr || allowed(g, parameter));
  };
  std::vector<Layer> layers(order.size() + 1);
  layers[0][Position(groups.size(), 0)] = 1;
  size_t states = 1;
  for (size_t i = 0; i < order.size(); ++i) {
    for (const auto& entry : layers[i]) {
      const Position& position = entry.first;
      const int ways = entry.second;
      size_t taken = 0;
      for (const uint32_t count : position) taken += count;
      const auto add = [&](Position next) {
        uint8_t& known = layers[i + 1][std::move(next)];
        known = static_cast<uint8_t>(std::min(2, known + ways));
      };
      // The remaining parameters must still fill the groups.
      if (wanted - taken < order.size() - i) add(position);
      for (size_t g = 0; g < groups.size(); ++g) {
        if (!fits(g, position[g], order[i])) continue;
        Position next = position;
        ++next[g];
        add(std::move(next));
      }
    }
    states += layers[i + 1].size();
    if (states > kMostStates) return {.ways = Ways::kTooMany, .groups = {}};
  }
  Position end;
  for (const auto& group : groups)
    end.push_back(static_cast<uint32_t>(group.size()));
  const auto last = layers.back().find(end);
  if (last == layers.back().end()) return {};
  if (last->second > 1) return {.ways = Ways::kMany, .groups = {}};
  // There is one way: walk back along it.
  Split split{.ways = Ways::kOne, .groups = {}};
  split.groups.resize(groups.size());
  for (size_t i = order.size(); i-- > 0;) {
    for (size_t g = 0; g < groups.size(); ++g) {
      if (end[g] == 0 || !fits(g, end[g] - 1, order[i])) continue;
      Position before = end;
      --before[g];
      if (!layers[i].contains(before)) continue;
      split.groups[g].push_back(i);
      end = std::move(before);
      break;
    }
  }
  for (auto& group : split.groups) std::ranges::reverse(group);
  return split;
}

}  // namespace ckpt::runs
