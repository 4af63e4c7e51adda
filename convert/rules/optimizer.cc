// SPDX-License-Identifier: Apache-2.0
#include "convert/rules/optimizer.h"

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "convert/rules/trained_experts.h"
#include "formats/megatron/canonical/names.h"
#include "formats/megatron/state/param_groups.h"
#include "formats/megatron/state/steps.h"
#include "formats/traits.h"
#include "lib/text/format.h"

namespace ckpt::families {
namespace {

using text::printable;

constexpr std::string_view kMoments[] = {"exp_avg", "exp_avg_sq"};
constexpr char kWithout[] = "--model-only converts the model alone";

// Adds state of a tensor's own shape, so that it is arranged like its
// parameter.
void add_state(const Catalog& source, const Tensor& tensor, const Shape& shape,
               const std::string& state, Optimizer& optimizer) {
  if (shape != tensor.shape)
    throw unfaithful_error({source.path, printable(tensor.name)},
                           "has shape {}, its parameter {}: it can't be "
                           "arranged as that is",
                           to_string(tensor.shape), to_string(shape))
        .with_hint(kWithout);
  Tensor one = tensor;
  one.name = tensor.param;
  one.kind = Kind::model;
  one.param.clear();
  one.state.clear();
  one.tie = 0;
  optimizer.states[state].push_back(std::move(one));
}

void drop_states(Catalog& source) {
  std::erase_if(source.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::optim;
  });
}

using ShapesByName = std::unordered_map<std::string_view, const Shape*>;

ShapesByName shapes_of(const Catalog& source) {
  ShapesByName shapes;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model) shapes.emplace(tensor.name, &tensor.shape);
  return shapes;
}

// The parameters that are saved in place of those that are trained.
using SavedNames = std::unordered_map<std::string, std::vector<std::string>>;

void rename_in_groups(const SavedNames& saved, Optimizer& optimizer) {
  for (runs::AdamGroup& group : optimizer.groups) {
    std::vector<std::string> params;
    for (std::string& param : group.params) {
      const auto parts = saved.find(param);
      if (parts == saved.end())
        params.push_back(std::move(param));
      else
        params.insert(params.end(), parts->second.begin(), parts->second.end());
    }
    group.params = std::move(params);
  }
}

void add_named(const Catalog& source, const Tensor& tensor,
               const ShapesByName& shapes, SavedNames& saved,
               Optimizer& optimizer) {
  if (std::ranges::find(kMoments, tensor.state) == std::end(kMoments))
    throw unfaithful_error({source.path, printable(tensor.name)},
                           "is state of an Adam with amsgrad, which Megatron's "
                           "has not")
        .with_hint(kWithout);
  const auto shape = shapes.find(tensor.param);
  if (shape != shapes.end())
    return add_state(source, tensor, *shape->second, tensor.state, optimizer);
  const auto parts = saved_experts(
      tensor.param, tensor.shape,
      [&](const std::string& name) { return shapes.contains(name); });
  if (parts.empty())
    throw unfaithful_error({source.path, printable(tensor.name)},
                           "is state of a parameter that the model lacks")
        .with_hint(kWithout);
  for (Tensor& one : split_experts(tensor, parts)) {
    const auto known = shapes.find(one.name);
    one.param = one.name;
    add_state(source, one, known == shapes.end() ? Shape() : *known->second,
              tensor.state, optimizer);
  }
  saved.emplace(tensor.param, parts);
}

Optimizer take_named(Catalog& source) {
  runs::Adam adam = runs::find_adam(source);
  Optimizer optimizer{.states = {},
                      .groups = std::move(adam.groups),
                      .document = std::move(adam.document)};
  const auto step = megatron::common_count(source);
  if (!step)
    throw unfaithful_error({source.path, {}},
                           "nothing says how often the optimizer stepped")
        .with_hint(kWithout);
  optimizer.step = *step;
  const ShapesByName shapes = shapes_of(source);
  SavedNames saved;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim && !megatron::is_count(tensor))
      add_named(source, tensor, shapes, saved, optimizer);
  rename_in_groups(saved, optimizer);
  std::erase_if(source.objects, [](const Object& object) {
    return object.name.find(".param_groups") != object.name.npos;
  });
  drop_states(source);
  return optimizer;
}

Optimizer take_megatron(Catalog& source) {
  const megatron::ParamGroups groups(source);
  Optimizer optimizer;
  if (!groups.step())
    throw unfaithful_error({source.path, {}},
                           "nothing says how often the optimizer stepped")
        .with_hint(kWithout);
  optimizer.step = *groups.step();
  optimizer.groups.resize(groups.size());
  for (size_t g = 0; g < groups.size(); ++g)
    optimizer.groups[g].options = groups.options(g, *optimizer.document);
  const auto shapes = shapes_of(source);
  for (const Tensor& tensor : source.tensors) {
    if (tensor.kind != Kind::optim) continue;
    const bool main =
        tensor.state == kMainState || tensor.state == "fp32_param";
    const bool known =
        main || std::ranges::find(kMoments, tensor.state) != std::end(kMoments);
    const auto shape = shapes.find(tensor.param);
    if (!known || shape == shapes.end())
      throw unfaithful_error(
          {source.path, printable(tensor.name)},
          "is not a moment of Adam's, or of a parameter that "
          "the model lacks")
          .with_hint(kWithout);
    if (tensor.state == kMoments[0])
      optimizer.groups[groups.of(tensor.param, tensor.shape)].params.push_back(
          tensor.param);
    add_state(source, tensor, *shape->second,
              main ? std::string(kMainState) : tensor.state, optimizer);
  }
  std::erase_if(source.objects, [](const Object& object) {
    return object.name == "optimizer" || object.name == "content_metadata" ||
           object.name.starts_with("optimizer.");
  });
  drop_states(source);
  return optimizer;
}

}  // namespace

bool has_optimizer(const Catalog& source) {
  return std::ranges::any_of(source.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::optim;
  });
}

void gather_megatron(Catalog& source) {
  const auto gather = formats::traits_of(source.format).gather_optimizer;
  gather ? gather(source) : megatron::gather_steps(source);
}

Optimizer take_optimizer(Catalog& source, std::string_view from) {
  return from == "hf" ? take_named(source) : take_megatron(source);
}

}  // namespace ckpt::families
