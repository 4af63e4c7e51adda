// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/stage_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace ckpt::megatron {
namespace {

// "Et*9|t*8|t*8|t*7L": embedding, layers, prediction layers, loss.
std::string notation_of(const std::vector<uint64_t>& layers,
                        uint64_t prediction) {
  std::string text = "E";
  for (size_t i = 0; i < layers.size(); ++i)
    text += fmt::format("{}t*{}", i == 0 ? "" : "|", layers[i]);
  if (prediction != 0) text += fmt::format("m*{}", prediction);
  return text + "L";
}

}  // namespace

void describe_stages(StageSplit& split, uint64_t prediction) {
  const std::vector<uint64_t>& layers = split.layers;
  const size_t count = layers.size();
  const auto equal = [&](size_t begin, size_t end) {
    return std::all_of(layers.begin() + static_cast<ptrdiff_t>(begin),
                       layers.begin() + static_cast<ptrdiff_t>(end),
                       [&](uint64_t n) { return n == layers[begin]; });
  };
  if (equal(0, count)) return;
  if (count == 2 && split.vpp == 1) {
    split.first_stage = layers[0];  // the rest is the other one's
  } else if (split.vpp == 1 && equal(1, count - 1)) {
    if (layers[0] != layers[1]) split.first_stage = layers[0];
    if (layers.back() != layers[1]) split.last_stage = layers.back();
  } else {
    split.notation = notation_of(layers, prediction);
  }
}

}  // namespace ckpt::megatron
