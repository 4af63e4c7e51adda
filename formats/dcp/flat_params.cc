// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/flat_params.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ckpt::dcp {
namespace {

using Path = std::vector<PathElement>;

// In the element that ends with the leaf, replaces the leaf by the parameter.
Path path_of(Path path, const std::string& leaf, const std::string& parameter) {
  for (PathElement& element : path) {
    const auto* text = std::get_if<std::string>(&element);
    if (text == nullptr || !text->ends_with(leaf)) continue;
    element = fsdp::with_parameter(*text, leaf, parameter);
    break;
  }
  return path;
}

}  // namespace

void rename_entries(const std::vector<fsdp::Expansion>& expansions,
                    Metadata& metadata) {
  if (expansions.empty()) return;
  std::unordered_map<std::string_view, const fsdp::Expansion*> by_name;
  for (const fsdp::Expansion& expansion : expansions)
    by_name.emplace(expansion.name, &expansion);
  std::vector<TensorEntry> entries;
  for (TensorEntry& entry : metadata.tensors) {
    const auto found = by_name.find(entry.name);
    if (found == by_name.end()) {
      entries.push_back(std::move(entry));
      continue;
    }
    const fsdp::Expansion& expansion = *found->second;
    Path whole;
    if (metadata.planner) {
      auto node = metadata.planner->extract(entry.name);
      if (!node.empty()) whole = std::move(node.mapped());
    }
    for (const auto& into : expansion.into) {
      TensorEntry& part = entries.emplace_back();
      part.name = into.name;
      part.position = entry.position;
      if (!whole.empty())
        metadata.planner->emplace(
            into.name, path_of(whole, expansion.leaf, into.parameter));
    }
  }
  metadata.tensors = std::move(entries);
}

}  // namespace ckpt::dcp
