// SPDX-License-Identifier: Apache-2.0
#include "convert/adapters/inside.h"

#include <algorithm>
#include <string>
#include <utility>

#include "formats/peft/config.h"
#include "formats/peft/names.h"

namespace ckpt::families {
namespace {

constexpr std::string_view kOriginal = ".original_module.";

bool is_adapters(std::string_view name) {
  return name.find(".modules_to_save.") != name.npos ||
         peft::part_of(name).has_value();
}

std::string base_name(const std::string& name) {
  std::string base(peft::in_base_model(name));
  if (auto whole = peft::without_wrap(base)) base = std::move(*whole);
  if (const size_t at = base.find(kOriginal); at != base.npos)
    base.replace(at, kOriginal.size(), ".");
  return base;
}

}  // namespace

bool has_adapter_inside(const Catalog& source) {
  const auto wrapped = [](const Tensor& tensor) {
    return tensor.kind == Kind::model &&
           peft::without_wrap(tensor.name).has_value();
  };
  return std::ranges::any_of(source.tensors, wrapped) &&
         peft::dialect_of(source) != nullptr;
}

Catalog take_adapter(Catalog& source) {
  Catalog adapter = source;
  std::erase_if(adapter.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::optim || !is_adapters(tensor.name);
  });
  const size_t states = std::erase_if(source.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::optim;
  });
  std::erase_if(source.tensors,
                [](const Tensor& tensor) { return is_adapters(tensor.name); });
  for (Tensor& tensor : source.tensors) tensor.name = base_name(tensor.name);
  source.skeleton.reset();
  source.claims.clear();
  std::erase_if(source.sidecars, [](const Sidecar& sidecar) {
    return sidecar.name == peft::kConfigFile;
  });
  if (states != 0)
    source.assumptions.push_back(
        "the optimizer's state is left out: it is that of the adapter's "
        "factors");
  return adapter;
}

}  // namespace ckpt::families
