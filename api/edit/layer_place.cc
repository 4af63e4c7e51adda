// SPDX-License-Identifier: Apache-2.0
#include "api/edit/layer_place.h"

#include <algorithm>

#include "formats/traits.h"
#include "lib/text/number.h"

namespace ckpt::library {
namespace {

// The last component of what comes before a layer's number.
constexpr std::string_view kLayerWords[] = {"layers", "layer", "blocks",
                                            "block", "h"};

std::optional<uint32_t> layer_digits(std::string_view text) {
  return text::number<uint32_t>(text);
}

}  // namespace

std::optional<LayerPlace> layer_place(std::string_view name) {
  bool after_word = false;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (after_word)
      if (const auto number = layer_digits(part))
        return LayerPlace{*number, begin, end};
    after_word = std::ranges::find(kLayerWords, part) != std::end(kLayerWords);
    begin = end + 1;
  }
  return std::nullopt;
}

std::optional<uint32_t> layer_of(std::string_view name) {
  const auto place = layer_place(name);
  return place ? std::optional(place->layer) : std::nullopt;
}

std::optional<uint32_t> layer_of(const Tensor& tensor) {
  const auto layer = layer_of(std::string_view(tensor.name));
  return layer || tensor.param.empty()
             ? layer
             : layer_of(std::string_view(tensor.param));
}

uint64_t stacked_layers(const Catalog& catalog, const Tensor& tensor) {
  const auto stacks = formats::traits_of(catalog.format).stacks_layers;
  if (!stacks || tensor.shape.empty() || !stacks(tensor.name)) return 0;
  return tensor.shape[0];
}

}  // namespace ckpt::library
