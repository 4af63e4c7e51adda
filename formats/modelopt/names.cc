// SPDX-License-Identifier: Apache-2.0
#include "formats/modelopt/names.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/embedded.h"
#include "lib/text/number.h"

namespace ckpt::modelopt {
namespace {

using Json = nlohmann::json;

std::vector<text::Glob> globs(const Json& patterns) {
  std::vector<text::Glob> result;
  for (const Json& pattern : patterns)
    result.emplace_back(pattern.get<std::string>());
  return result;
}

Naming make_naming(const std::string& family, const Json& json) {
  Naming naming;
  naming.family = family;
  naming.model_types = json.at("model_types");
  naming.layers = json.at("layers");
  naming.embedding = json.at("embedding");
  naming.norm = json.at("norm");
  naming.head = json.at("head");
  naming.attention = globs(json.at("attention"));
  naming.ffn = globs(json.at("ffn"));
  naming.order = json.at("order");
  if (json.contains("shared")) naming.shared = json.at("shared");
  if (json.contains("groups"))
    for (const auto& [group, patterns] : json.at("groups").items())
      naming.groups.emplace_back(group, globs(patterns));
  return naming;
}

const std::vector<Naming>& all_namings() {
  static const std::vector<Naming> all = [] {
    std::vector<Naming> namings;
    const Json json = Json::parse(families::embedded_text("modelopt_names"));
    for (const auto& [family, rules] : json.items())
      namings.push_back(make_naming(family, rules));
    return namings;
  }();
  return all;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool any(const std::vector<text::Glob>& globs, std::string_view name) {
  return std::ranges::any_of(
      globs, [&](const text::Glob& glob) { return glob.matches(name); });
}

const Naming& llama() {
  return *std::ranges::find(all_namings(), "llama", &Naming::family);
}

}  // namespace

Place Naming::place(std::string_view name) const {
  if (contains(embedding, name)) return {Part::kEmbedding, 0, {}};
  if (contains(norm, name)) return {Part::kNorm, 0, {}};
  if (contains(head, name)) return {Part::kHead, 0, {}};
  if (!name.starts_with(layers)) return {};
  std::string_view after = name.substr(layers.size());
  const auto block = text::take_number(after, UINT32_MAX);
  if (!block || !after.starts_with('.')) return {};
  return {Part::kBlock, static_cast<uint32_t>(*block), after.substr(1)};
}

Half Naming::half(std::string_view rest) const {
  const bool first = any(attention, rest), second = any(ffn, rest);
  if (first && second) return Half::kBoth;
  if (first) return Half::kAttention;
  return second ? Half::kFfn : Half::kNone;
}

size_t Naming::rank(std::string_view rest) const {
  const auto found = std::ranges::find_if(
      order, [&](const std::string& p) { return rest.starts_with(p); });
  // A module's weight comes before its bias.
  return 2 * static_cast<size_t>(found - order.begin()) +
         (rest.ends_with("bias") ? 1 : 0);
}

const Naming* find_naming(std::string_view model_type) {
  for (const Naming& naming : all_namings())
    if (contains(naming.model_types, model_type)) return &naming;
  return nullptr;
}

const Naming& naming_of(const Catalog& catalog) {
  if (const Naming* naming = find_naming(catalog.family)) return *naming;
  const auto occurs = [&](const Naming& naming) {
    return std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
      return tensor.name.starts_with(naming.layers);
    });
  };
  if (occurs(llama())) return llama();
  const auto found = std::ranges::find_if(all_namings(), occurs);
  return found == all_namings().end() ? llama() : *found;
}

}  // namespace ckpt::modelopt
