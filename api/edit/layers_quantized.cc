// SPDX-License-Identifier: Apache-2.0
#include "api/edit/layers_quantized.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/edit/layers.h"
#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::library {
namespace {

constexpr int kDeepestModules = 8;

// Regular expressions and globs: re:.*layers\.3\..*, -:model\.layers\.3
bool is_module_pattern(const std::string& name) {
  return name.find_first_of("\\*[(^$|?") != name.npos;
}

// Whether a pattern speaks of a layer by its number.
bool has_layer_number(const std::string& name) {
  const size_t at = name.find("layers");
  return at != name.npos && name.find_first_of("0123456789", at) != name.npos;
}

bool keeps_numbers(const std::vector<uint32_t>& order) {
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] != i) return false;
  return true;
}

void check_module_pattern(const std::string& name,
                          const std::vector<uint32_t>& order,
                          const std::string& path) {
  if (is_module_pattern(name) && has_layer_number(name) &&
      !keeps_numbers(order))
    throw unfaithful_error({path, {}},
                           "--layers: quantization_config names layers by the "
                           "pattern {}, which doesn't follow their new numbers",
                           text::printable(name))
        .with_hint("name the modules one by one in config.json");
}

void add_module(const std::string& name, const std::vector<uint32_t>& order,
                ConfigTable& list) {
  const auto place = layer_place(name);
  if (!place || is_module_pattern(name)) {
    list.push_back(name);
    return;
  }
  const std::string number =
      name.substr(place->begin, place->end - place->begin);
  for (size_t i = 0; i < order.size(); ++i)
    if (std::to_string(order[i]) == number)
      list.push_back(name.substr(0, place->begin) + std::to_string(i) +
                     name.substr(place->end));
}

void change_modules(ConfigTable& value, const std::vector<uint32_t>& order,
                    const std::string& path, int depth) {
  if (depth > kDeepestModules) return;
  if (value.is_object()) {
    for (auto& [key, entry] : value.items()) {
      check_module_pattern(key, order, path);
      change_modules(entry, order, path, depth + 1);
    }
    return;
  }
  if (!value.is_array()) return;
  if (!std::ranges::all_of(
          value, [](const ConfigTable& one) { return one.is_string(); })) {
    for (ConfigTable& one : value) change_modules(one, order, path, depth + 1);
    return;
  }
  ConfigTable list = ConfigTable::array();
  for (const ConfigTable& one : value) {
    const auto name = one.get<std::string>();
    check_module_pattern(name, order, path);
    add_module(name, order, list);
  }
  value = std::move(list);
}

}  // namespace

void order_modules(ConfigTable& quantization,
                   const std::vector<uint32_t>& order,
                   const std::string& path) {
  if (quantization.is_object()) change_modules(quantization, order, path, 0);
}

}  // namespace ckpt::library
