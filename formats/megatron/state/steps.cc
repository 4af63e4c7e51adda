// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/steps.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "formats/megatron/legacy/objects.h"
#include "formats/megatron/legacy/states.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {
namespace {

double number_of(const Catalog& catalog, const Tensor& tensor) {
  const Piece& piece = tensor.pieces.at(0);
  const std::string bytes =
      torch::read_content(catalog.files.at(piece.extent.file),
                          piece.extent.offset, element_size(tensor.dtype));
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, bytes.data(), std::min(sizeof value, bytes.size()));
    return static_cast<double>(value);
  };
  if (tensor.dtype == DType::f32) return as(float{});
  if (tensor.dtype == DType::f64) return as(double{});
  if (tensor.dtype == DType::i64) return as(int64_t{});
  if (tensor.dtype == DType::i32) return as(int32_t{});
  throw unfaithful_error({catalog.path, tensor.name}, "a count of steps in {}",
                         name(tensor.dtype));
}

}  // namespace

bool is_count(const Tensor& tensor) {
  return tensor.kind == Kind::optim && tensor.state == "step" &&
         element_count(tensor.shape) == 1 && tensor.pieces.size() != 0;
}

std::optional<double> common_count(const Catalog& catalog) {
  std::optional<double> step;
  for (const Tensor& tensor : catalog.tensors) {
    if (!is_count(tensor)) continue;
    const double mine = number_of(catalog, tensor);
    if (step.value_or(mine) != mine)
      throw unfaithful_error({catalog.path, tensor.name},
                             "was updated {} times, others {} times: "
                             "Megatron's optimizers have one count",
                             mine, *step)
          .with_hint("--model-only leaves the optimizer out");
    step = mine;
  }
  return step;
}

void gather_steps(Catalog& catalog) {
  if (std::ranges::none_of(catalog.tensors, is_count)) return;
  locate(catalog);
  const double step = common_count(catalog).value();
  const auto object =
      std::ranges::find(catalog.objects, kOptimizerObject, &Object::name);
  if (object == catalog.objects.end() || !object->document) return;
  auto document = std::make_shared<pickle::Document>();
  const pickle::Id root = document->import(*object->document, object->node);
  document->set_root(root);
  for (const pickle::Id one : optimizers_in(*document, root)) {
    const pickle::Id inner = inner_optimizer(*document, one);
    pickle::Id state = document->find(inner, "state");
    if (state == pickle::kNoId) {
      state = document->add_container(pickle::Type::kDict);
      document->set(inner, "state", state);
    }
    document->set(state, "common_step", document->add_float(step));
  }
  *object = {.name = object->name, .document = document, .node = root};
  std::erase_if(catalog.tensors, is_count);
}

}  // namespace ckpt::megatron
