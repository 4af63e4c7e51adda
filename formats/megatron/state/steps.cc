// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/steps.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <unordered_set>

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "formats/megatron/state/optimizer_common.h"
#include "formats/megatron/state/optimizer_groups.h"
#include "formats/megatron/state/rank_objects.h"
#include "lib/pickle/value.h"
#include "models/view.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;

constexpr char kLeaveOut[] = "--model-only leaves the optimizer out";

double number_at(const Catalog& catalog, const Tensor& tensor,
                 const Piece& piece) {
  if (piece.transform != kNoTransform)
    throw unfaithful_error({catalog.path, tensor.name},
                           "a count of steps in another byte order")
        .with_hint(kLeaveOut);
  if (const auto number = torch::read_number(catalog, tensor.dtype, piece))
    return *number;
  throw unfaithful_error({catalog.path, tensor.name}, "a count of steps in {}",
                         name(tensor.dtype))
      .with_hint(kLeaveOut);
}

// A parameter with moments was updated, so it needs a count, too.
void check_all_counted(const Catalog& catalog, double step) {
  std::unordered_set<std::string_view> counted;
  for (const Tensor& tensor : catalog.tensors)
    if (is_count(tensor)) counted.insert(tensor.param);
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::optim || !tensor.state.starts_with("exp_avg") ||
        counted.contains(tensor.param))
      continue;
    throw unfaithful_error({catalog.path, tensor.name},
                           "{} has no count of steps, others have {}",
                           tensor.param, step)
        .with_hint(kLeaveOut);
  }
}

void set_common_step(Object& object, double step) {
  auto document = std::make_shared<Document>();
  const Id root = document->import(*object.document, object.node);
  document->set_root(root);
  for (const Id one : optimizers_in(*document, root)) {
    const Id inner = inner_optimizer(*document, one);
    Id state = document->find(inner, "state");
    if (state == kNoId) {
      state = document->add_container(pickle::Type::kDict);
      document->set(inner, "state", state);
    }
    document->set(state, "common_step", document->add_float(step));
  }
  object = {.name = object.name, .document = document, .node = root};
}

// torch's options, which Transformer Engine's and apex's groups lack.
bool is_torch(const Document& document, Id group) {
  return document.find(group, "amsgrad") != kNoId;
}

// The node of the count; kNoId for an optimizer that counts in its groups.
Id count_in(const Document& document, Id optimizer) {
  const Id inner = inner_optimizer(document, optimizer);
  const Id common = document.find(document.find(inner, "state"), "common_step");
  const Id list = document.find(inner, "param_groups");
  if (common != kNoId || !document.is(list, pickle::Type::kList)) return common;
  for (const Id group : document.items(list))
    if (is_torch(document, group)) return document.find(group, "step");
  return kNoId;
}

}  // namespace

bool is_count(const Tensor& tensor) {
  return tensor.kind == Kind::optim && tensor.state == "step" &&
         element_count(tensor.shape) == 1 && !tensor.pieces.empty();
}

std::optional<double> common_count(const Catalog& catalog) {
  constexpr double kMost = 9007199254740992;  // 2^53: doubles count this far
  std::optional<double> step;
  for (const Tensor& tensor : catalog.tensors) {
    if (!is_count(tensor)) continue;
    for (const Piece& piece : tensor.pieces) {  // of each rank
      const double mine = number_at(catalog, tensor, piece);
      if (!(mine >= 0 && mine <= kMost) || mine != std::floor(mine))
        throw unfaithful_error({catalog.path, tensor.name},
                               "{} is not a count of steps", mine)
            .with_hint(kLeaveOut);
      if (step && *step != mine)
        throw unfaithful_error({catalog.path, tensor.name},
                               "was updated {} times, others {} times: "
                               "Megatron's optimizers have one count",
                               mine, *step)
            .with_hint(kLeaveOut);
      step = mine;
    }
  }
  if (step) check_all_counted(catalog, *step);
  return step;
}

void gather_steps(Catalog& catalog) {
  if (std::ranges::none_of(catalog.tensors, is_count)) return;
  locate(catalog);
  const double step = common_count(catalog).value();
  const auto object =
      std::ranges::find(catalog.objects, kOptimizerObject, &Object::name);
  if (object == catalog.objects.end() || !object->document) return;
  set_common_step(*object, step);
  std::erase_if(catalog.tensors, is_count);
}

std::optional<double> steps_of_each(Catalog& catalog) {
  CommonEditor editor(catalog);
  const Document& document = editor.document();
  std::optional<double> step;
  for (const Id one : chained(document, editor.find(kOptimizerObject))) {
    const Id node = count_in(document, one);
    if (node == kNoId) continue;
    const auto mine = editor.scalar(node);
    if (!mine)
      throw unfaithful_error({catalog.path, "optimizer"},
                             "its count of steps is not a number")
          .with_hint(kLeaveOut);
    if (step.value_or(*mine) != *mine)
      throw unfaithful_error({catalog.path, "optimizer"},
                             "its optimizers were stepped {} and {} times",
                             *step, *mine)
          .with_hint(kLeaveOut);
    step = mine;
  }
  return step;
}

void spread_steps(Catalog& catalog, double step) {
  const auto counts =
      families::View::filled(catalog, DType::f32, Shape(), step);
  std::vector<Tensor> tensors;
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim && tensor.state == "exp_avg") {
      Tensor count = tensor;
      count.state = "step";
      count.name.replace(count.name.find(tensor.state), tensor.state.size(),
                         count.state);
      counts.into(count);
      tensors.push_back(std::move(count));
    }
    tensors.push_back(std::move(tensor));
  }
  catalog.tensors = std::move(tensors);
}

}  // namespace ckpt::megatron
