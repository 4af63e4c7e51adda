// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/layer_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lib/text/number.h"

namespace ckpt::deepspeed {
namespace {

constexpr std::string_view kModel = "language_model.";

class Numbers {
 public:
  explicit Numbers(const Layers& layers) {
    for (const auto& [number, slices] : layers)
      if (std::ranges::any_of(slices.ranks.front(), [](const auto& named) {
            return named.first.find(".self_attention.") != std::string::npos;
          }))
        layers_.emplace(number, layers_.size());
  }

  bool any() const { return !layers_.empty(); }

  std::string named(const std::string& name) const {
    constexpr std::string_view kTied = "tied_modules.embed.";
    if (name.starts_with(kTied))
      return fmt::format("{}embedding.{}", kModel, name.substr(kTied.size()));
    std::string_view rest = name;
    const auto number = text::take_number(rest, UINT32_MAX);
    if (!number || !rest.starts_with('.')) return name;
    rest.remove_prefix(1);
    if (const auto layer = layers_.find(*number); layer != layers_.end())
      return fmt::format("{}encoder.layers.{}.{}", kModel, layer->second, rest);
    if (*number < layers_.begin()->first)
      return fmt::format("{}embedding.{}", kModel, rest);
    // Untied, the head is the class of embeddings again, or a linear of its
    // own.
    if (rest == "lm_head.weight" || rest == "word_embeddings.weight")
      return fmt::format("{}output_layer.weight", kModel);
    constexpr std::string_view kNorm = "final_layernorm.";
    if (rest.starts_with(kNorm)) rest.remove_prefix(kNorm.size());
    if (rest != "weight" && rest != "bias") return name;
    return fmt::format("{}encoder.{}{}", kModel, kNorm, rest);
  }

 private:
  std::map<uint64_t, size_t> layers_;  // module -> layer
};

}  // namespace

void name_as_megatron(Layers& layers, std::vector<Column>& columns) {
  if (layers.empty()) return;
  const Numbers numbers(layers);
  if (!numbers.any()) return;
  for (auto& layer : layers)
    for (auto& rank : layer.second.ranks)
      for (auto& named : rank) named.first = numbers.named(named.first);
  for (Column& column : columns) {
    for (ModelRank& model : column.models)
      for (auto& group : model.groups)
        for (NamedShape& one : group) one.name = numbers.named(one.name);
    for (OptimRank& rank : column.optims)
      for (auto& map : rank.mappings) {
        std::map<std::string, Fragment> renamed;
        for (const auto& [name, at] : map)
          renamed.emplace(numbers.named(name), at);
        map = std::move(renamed);
      }
  }
}

}  // namespace ckpt::deepspeed
