// SPDX-License-Identifier: Apache-2.0
#include "api/edit/quantized_modules.h"

#include <functional>

#include "api/edit/experts.h"
#include "api/edit/layer_place.h"
#include "ckpt/error.h"
#include "formats/rank_rules.h"
#include "lib/text/format.h"

namespace ckpt::library {
namespace {

constexpr int kDeepestModules = 8;

// Returns a module's new names, none if it is removed. Throws for a pattern
// that can't be changed.
using NewNames = std::function<std::vector<std::string>(const std::string&)>;

// Regular expressions and globs: re:.*layers\.3\..*, -:model\.layers\.3
bool is_module_pattern(const std::string& name) {
  return name.find_first_of("\\*[(^$|?") != name.npos;
}

// True if a pattern names a layer by its number.
bool has_layer_number(const std::string& name) {
  const size_t at = name.find("layers");
  return at != name.npos && name.find_first_of("0123456789", at) != name.npos;
}

// "experts\.5\.": a digit comes first. "experts\.\d+" and "experts.[0-9]+"
// match all of them.
bool has_expert_number(const std::string& name) {
  constexpr std::string_view kWord = "experts";
  for (size_t at = name.find(kWord); at != name.npos;
       at = name.find(kWord, at + 1)) {
    const std::string_view rest =
        std::string_view(name).substr(at + kWord.size());
    const size_t next = rest.find_first_not_of("\\.([");
    if (next == rest.npos || rest.substr(next).starts_with("0-9")) continue;
    if (rest[next] >= '0' && rest[next] <= '9') return true;
  }
  return false;
}

template <class Number>
bool keeps_numbers(const std::vector<Number>& order) {
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] != i) return false;
  return true;
}

Error stays_as_pattern(const std::string& name, const std::string& path,
                       std::string_view option, std::string_view what) {
  return unfaithful_error({path, {}},
                          "{}: quantization_config names {} by the pattern {}, "
                          "which doesn't follow their new numbers",
                          option, what, text::printable(name))
      .with_hint("name the modules one by one in config.json");
}

std::vector<std::string> in_order(const std::string& name,
                                  const std::vector<uint32_t>& order,
                                  const std::string& path) {
  if (is_module_pattern(name)) {
    if (has_layer_number(name) && !keeps_numbers(order))
      throw stays_as_pattern(name, path, "--layers", "layers");
    return {name};
  }
  const auto place = layer_place(name);
  if (!place || formats::is_tower(name)) return {name};
  const std::string number =
      name.substr(place->begin, place->end - place->begin);
  std::vector<std::string> names;
  for (size_t i = 0; i < order.size(); ++i)
    if (std::to_string(order[i]) == number)
      names.push_back(name.substr(0, place->begin) + std::to_string(i) +
                      name.substr(place->end));
  return names;
}

std::vector<std::string> of_kept(const std::string& name,
                                 const std::vector<uint64_t>& kept,
                                 const std::string& path) {
  if (is_module_pattern(name)) {
    if (has_expert_number(name) && !keeps_numbers(kept))
      throw stays_as_pattern(name, path, "--experts", "experts");
    return {name};
  }
  const ExpertName parsed = parse_expert_name(name);
  if (parsed.what != ExpertName::What::kNumbered) return {name};
  const auto number = new_expert(kept, parsed.expert);
  if (!number) return {};
  return {name.substr(0, parsed.begin) + std::to_string(*number) +
          name.substr(parsed.end)};
}

void rename_modules(ConfigTable& value, const NewNames& names, int depth) {
  if (depth > kDeepestModules) return;
  if (value.is_object()) {
    ConfigTable made = ConfigTable::object();
    for (auto& [key, entry] : value.items()) {
      rename_modules(entry, names, depth + 1);
      for (const std::string& name : names(key)) made[name] = entry;
    }
    value = std::move(made);
    return;
  }
  if (!value.is_array()) return;
  ConfigTable list = ConfigTable::array();
  for (ConfigTable& one : value) {
    if (!one.is_string()) {
      rename_modules(one, names, depth + 1);
      list.push_back(one);
      continue;
    }
    for (const std::string& name : names(one.get<std::string>()))
      list.push_back(name);
  }
  value = std::move(list);
}

}  // namespace

void order_modules(ConfigTable& quantization,
                   const std::vector<uint32_t>& order,
                   const std::string& path) {
  if (!quantization.is_object()) return;
  rename_modules(
      quantization,
      [&](const std::string& name) { return in_order(name, order, path); }, 0);
}

bool follow_expert_modules(ConfigTable& quantization,
                           const std::vector<uint64_t>& kept,
                           const std::string& path) {
  if (!quantization.is_object()) return false;
  const ConfigTable before = quantization;
  rename_modules(
      quantization,
      [&](const std::string& name) { return of_kept(name, kept, path); }, 0);
  return quantization != before;
}

}  // namespace ckpt::library
