// SPDX-License-Identifier: Apache-2.0
#include "formats/modelopt/names.h"

#include <algorithm>

#include "lib/text/number.h"
#include "models/family.h"

namespace ckpt::modelopt {
namespace {

const std::vector<Naming>& all_namings() {
  static const std::vector<Naming> all = [] {
    std::vector<Naming> namings;
    for (const auto& family : families::Family::with_modelopt()) {
      Naming naming{*family->modelopt()};
      naming.family = family->name();
      const std::vector<std::string>& own = family->hf().model_types;
      naming.model_types = naming.also;
      naming.model_types.insert(naming.model_types.end(), own.begin(),
                                own.end());
      namings.push_back(std::move(naming));
    }
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
