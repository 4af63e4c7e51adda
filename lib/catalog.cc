// SPDX-License-Identifier: Apache-2.0
#include "ckpt/catalog.h"

#include "ckpt/layout.h"

namespace ckpt {

std::string_view name(Fate fate) {
  switch (fate) {
    case Fate::kConverted:
      return "converted";
    case Fate::kCarried:
      return "carried";
    case Fate::kLeftOut:
      break;
  }
  return "left_out";
}

std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::model:
      return "model";
    case Kind::optim:
      return "optim";
    case Kind::other:
      return "other";
  }
  return "other";
}

std::optional<uint64_t> byte_size(DType dtype, const Shape& shape) {
  const auto count = element_count(shape);
  if (!count) return std::nullopt;
  const auto bits = checked_mul(*count, info(dtype).bits);
  if (!bits) return std::nullopt;
  return *bits / 8 + (*bits % 8 != 0);
}

uint64_t byte_size(const Tensor& tensor) {
  return byte_size(tensor.dtype, tensor.shape).value_or(0);
}

uint64_t element_size(DType dtype) {
  const uint32_t bits = info(dtype).bits;
  return bits % 8 == 0 ? bits / 8 : 0;
}

const Tensor* Catalog::find(std::string_view name) const {
  for (const Tensor& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

void locate(Catalog& catalog) {
  if (!catalog.locate) return;
  const auto run = std::move(catalog.locate);
  catalog.locate = nullptr;
  run(catalog);
}

void load_objects(Catalog& catalog) {
  if (!catalog.load_objects) return;
  const auto run = std::move(catalog.load_objects);
  catalog.load_objects = nullptr;
  run(catalog);
}

}  // namespace ckpt
