// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks/flat_units.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "formats/runs/find/pattern.h"
#include "lib/cuts.h"

namespace ckpt::runs {
namespace {

constexpr uint64_t kAlignment = 16;  // bytes

// "model.layers.3." for a name below a numbered module; else "".
std::string layer_of(const std::string& name) {
  for (size_t at = 0; (at = name.find('.', at)) != name.npos;) {
    const size_t begin = ++at;
    const size_t end = name.find('.', begin);
    if (end == name.npos) return {};
    if (whole_number(name.substr(begin, end - begin)))
      return name.substr(0, end + 1);
  }
  return {};
}

// "….q_proj.lora_A.default." for what PEFT adds to a layer; else "".
std::string adapter_of(const std::string& name) {
  const size_t at = name.find(".lora_");
  return at == name.npos ? "" : name.substr(0, name.rfind('.') + 1);
}

template <class UnitOf>
std::vector<FlatUnit> wrapped(const ParameterOrder& order,
                              const std::map<std::string_view, DType>& dtypes,
                              UnitOf unit_of) {
  std::vector<FlatUnit> units(1);
  std::map<std::string, size_t> known{{"", 0}};
  for (size_t i = 0; i < order.parameters.size(); ++i) {
    const Parameter& parameter = order.parameters[i];
    const std::string name = unit_of(parameter.name);
    const auto [it, fresh] = known.emplace(name, units.size());
    if (fresh) units.emplace_back().name = name;
    FlatUnit& unit = units[it->second];
    const auto dtype = dtypes.find(parameter.name);
    if (unit.parameters.empty() && dtype != dtypes.end())
      unit.item = element_size(dtype->second);
    unit.elements += element_count(parameter.shape).value_or(0);
    unit.parameters.push_back(parameter);
    unit.numbers.push_back(i);
  }
  if (units[0].parameters.empty()) units.erase(units.begin());
  return units;
}

}  // namespace

std::vector<std::vector<FlatUnit>> ways_to_wrap(
    const ParameterOrder& order, std::span<const Tensor* const> model) {
  std::map<std::string_view, DType> dtypes;
  for (const Tensor* tensor : model)
    dtypes.emplace(tensor->name, tensor->dtype);
  std::vector<std::vector<FlatUnit>> ways;
  const auto add = [&](auto unit_of) {
    auto units = wrapped(order, dtypes, unit_of);
    if (std::ranges::none_of(
            ways, [&](const auto& way) { return way.size() == units.size(); }))
      ways.push_back(std::move(units));
  };
  add(layer_of);
  add([](const std::string& name) {
    std::string adapter = adapter_of(name);
    return adapter.empty() ? layer_of(name) : adapter;
  });
  add([](const std::string&) { return std::string(); });
  return ways;
}

std::vector<FlatRange> aligned_part(const FlatUnit& unit, uint64_t part,
                                    uint64_t parts) {
  const uint64_t step = std::max<uint64_t>(1, kAlignment / unit.item);
  std::vector<std::pair<uint64_t, uint64_t>> places;  // begin, end
  uint64_t at = 0;
  for (const Parameter& parameter : unit.parameters) {
    at += (step - at % step) % step;
    const uint64_t end = at + element_count(parameter.shape).value_or(0);
    places.emplace_back(at, end);
    at = end;
  }
  const uint64_t size = cuts::chunk_size(at, parts);
  const uint64_t first = part * size;
  std::vector<FlatRange> ranges;
  for (const auto& [begin, end] : places) {
    const uint64_t from = std::clamp(first, begin, end);
    const uint64_t to = std::clamp(first + size, begin, end);
    ranges.push_back({from - begin, to - begin});
  }
  return ranges;
}

}  // namespace ckpt::runs
