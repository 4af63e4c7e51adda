// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/flat.h"

#include <algorithm>
#include <map>

#include "formats/fairseq2/order.h"

namespace ckpt::fairseq2 {
namespace {

std::string unit_of(const std::string& name, Granularity granularity) {
  if (granularity == Granularity::kModel) return {};
  const LayerName layer = layer_of(name);
  if (granularity == Granularity::kLayer) {
    return layer.stack.empty()
               ? std::string()
               : std::string(layer.stack) + "." + std::to_string(layer.index);
  }
  for (const char* stack : {"encoder.", "decoder."})
    if (name.starts_with(stack)) return stack;
  return {};
}

uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

std::string_view name(Granularity granularity) {
  switch (granularity) {
    case Granularity::kLayer:
      return "layer";
    case Granularity::kStack:
      return "stack";
    case Granularity::kModel:
      return "model";
  }
  return "model";
}

std::vector<std::vector<FlatRange>> flat_slices(
    const std::vector<FlatParameter>& parameters, uint32_t ranks,
    Granularity granularity) {
  constexpr uint64_t kAlignment = 16;
  std::vector<uint64_t> begins;
  std::map<std::string, uint64_t> sizes;  // of the units
  for (const FlatParameter& p : parameters) {
    uint64_t& size = sizes[unit_of(p.name, granularity)];
    const uint64_t item = std::max<uint64_t>(p.itemsize, 1);
    begins.push_back(round_up(size, std::max<uint64_t>(kAlignment / item, 1)));
    size = begins.back() + p.elements;
  }
  std::vector<std::vector<FlatRange>> slices;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const FlatParameter& p = parameters[i];
    const uint64_t length =
        round_up(sizes[unit_of(p.name, granularity)], ranks) / ranks;
    auto& of_ranks = slices.emplace_back();
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      // In elements of the parameter.
      const auto local = [&](uint64_t at) {
        return std::clamp(at, begins[i], begins[i] + p.elements) - begins[i];
      };
      of_ranks.push_back({local(rank * length), local((rank + 1) * length)});
    }
  }
  return slices;
}

}  // namespace ckpt::fairseq2
