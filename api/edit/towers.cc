// SPDX-License-Identifier: Apache-2.0
#include "api/edit/towers.h"

#include <string>

#include "api/edit/layer_place.h"
#include "formats/rank_rules.h"

namespace ckpt::library {
namespace {

const std::string& parameter_name(const Tensor& tensor) {
  return tensor.param.empty() ? tensor.name : tensor.param;
}

}  // namespace

LayerCount::LayerCount(const Catalog& catalog,
                       const std::vector<bool>& left_out) {
  for (size_t i = 0; i < catalog.tensors.size() && !has_text_; ++i) {
    const Tensor& tensor = catalog.tensors[i];
    has_text_ =
        !left_out[i] && !formats::is_tower(parameter_name(tensor)) &&
        (library::layer_of(tensor) || stacked_layers(catalog, tensor) != 0);
  }
}

bool LayerCount::aside(std::string_view name) const {
  return has_text_ && formats::is_tower(name);
}

std::optional<uint32_t> LayerCount::layer_of(std::string_view name) const {
  if (aside(name)) return std::nullopt;
  return library::layer_of(name);
}

std::optional<uint32_t> LayerCount::layer_of(const Tensor& tensor) const {
  if (aside(parameter_name(tensor))) return std::nullopt;
  return library::layer_of(tensor);
}

uint64_t LayerCount::stacked(const Catalog& catalog,
                             const Tensor& tensor) const {
  return aside(parameter_name(tensor)) ? 0 : stacked_layers(catalog, tensor);
}

}  // namespace ckpt::library
