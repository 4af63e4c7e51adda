// SPDX-License-Identifier: Apache-2.0
#include "api/edit/model_alone.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "ckpt/ckpt.h"
#include "convert/config/dialects.h"
#include "formats/traits.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "models/wrapper.h"

namespace ckpt::library {
namespace {

// A generator's state in a file of a loop of one's own is bytes by that name.
bool is_generator(const Tensor& tensor) {
  return tensor.dtype == DType::u8 && tensor.shape.size() == 1 &&
         (tensor.name.find("rng") != tensor.name.npos ||
          tensor.name.find("random") != tensor.name.npos);
}

bool is_model(const Tensor& tensor) {
  return tensor.kind == Kind::model && !is_generator(tensor);
}

// "model.", if the document has a dict of this key in which all of the model's
// tensors are: names that begin with a module's own attribute are flat there.
std::string state_dict_key(const Catalog& catalog) {
  if (!catalog.skeleton) return {};
  const pickle::Document& document = *catalog.skeleton->document;
  std::string prefix;
  pickle::Id dict = catalog.skeleton->root;
  for (int depth = 0; depth < 4; ++depth) {
    const auto first = std::ranges::find_if(catalog.tensors, is_model);
    std::string_view rest = std::string_view(first->name).substr(prefix.size());
    const std::string key(rest.substr(0, rest.find('.')));
    if (key.size() == rest.size() || !document.as_pairs(dict)) break;
    const pickle::Id inner = document.find(dict, key);
    if (inner == pickle::kNoId || !document.as_pairs(inner)) break;
    const std::string longer = prefix + key + ".";
    if (!std::ranges::all_of(catalog.tensors, [&](const Tensor& tensor) {
          return tensor.name.starts_with(longer);
        }))
      break;
    prefix = longer;
    dict = inner;
  }
  return prefix;
}

}  // namespace

void keep_model_alone(Catalog& catalog, bool renamed) {
  if (std::ranges::none_of(catalog.tensors, is_model)) return;
  const size_t others = std::erase_if(
      catalog.tensors, [](const Tensor& tensor) { return !is_model(tensor); });
  const auto& headers = formats::traits_of(catalog.format).about_files;
  const size_t values = std::erase_if(catalog.objects, [&](const Object& one) {
    return !one.name.ends_with("_extra_state") &&
           std::ranges::none_of(headers, [&](std::string_view header) {
             return one.name.starts_with(header);
           });
  });
  if (others + values != 0)
    catalog.assumptions.push_back(fmt::format(
        "--model-only: {} and {} of the training's state are left "
        "out",
        text::counted(others, "tensor"), text::counted(values, "value")));
  const std::string prefix = renamed ? "" : state_dict_key(catalog);
  if (!prefix.empty()) {
    rename_tensors(catalog, [&](const std::string& name) {
      return name.substr(prefix.size());
    });
    catalog.assumptions.push_back(fmt::format(
        "--model-only: the names are those in the dict '{}'", prefix));
  }
  if (!renamed)
    families::unwrap(catalog, families::configured_family(catalog).get());
  catalog.skeleton.reset();
}

void leave_random_state(Catalog& catalog) {
  std::erase_if(catalog.tensors, [](const Tensor& tensor) {
    return tensor.kind != Kind::optim && is_generator(tensor);
  });
}

}  // namespace ckpt::library
