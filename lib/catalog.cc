// SPDX-License-Identifier: Apache-2.0
#include "ckpt/catalog.h"

#include <utility>

#include "ckpt/error.h"
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

const std::string& Content::bytes() const {
  if (damage_) throw *damage_;
  return bytes_;
}

const Tensor* Catalog::find(std::string_view name) const {
  for (const Tensor& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

uint64_t ArchiveOpener::sample(Catalog& catalog) const {
  locate(catalog);
  return 0;
}

void locate(Catalog& catalog) {
  if (const auto opener = std::exchange(catalog.archive_opener, nullptr))
    opener->locate(catalog);
}

void locate_archives(Catalog& catalog) {
  if (!catalog.archive_opener || !catalog.archive_opener->only_checks())
    locate(catalog);
}

uint64_t sample(Catalog& catalog) {
  const auto opener = std::exchange(catalog.archive_opener, nullptr);
  return opener ? opener->sample(catalog) : 0;
}

void load_objects(Catalog& catalog) {
  if (const auto opener = std::exchange(catalog.object_opener, nullptr))
    opener->open(catalog);
}

}  // namespace ckpt
