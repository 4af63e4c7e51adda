// SPDX-License-Identifier: Apache-2.0
#include "ckpt/box.h"

namespace ckpt {

uint64_t* Dims::grow(size_t count) {
  auto* grown = new uint64_t[count];
  std::copy_n(data(), size_, grown);
  if (on_heap()) delete[] heap_;
  heap_ = grown;
  capacity_ = static_cast<uint32_t>(count);
  return grown;
}

std::optional<uint64_t> element_count(const Shape& shape) {
  uint64_t count = 1;
  for (const uint64_t n : shape) {
    const auto product = checked_mul(count, n);
    if (!product) return std::nullopt;
    count = *product;
  }
  return count;
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (size_t d = 0; d < dims.size(); ++d) {
    if (d) text += ", ";
    text += std::to_string(dims[d]);
  }
  return text + "]";
}

Dims row_major_strides(const Shape& shape) {
  Dims strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;)
    strides[d - 1] = strides[d] * shape[d];
  return strides;
}

uint64_t volume(const Box& box) {
  uint64_t count = 1;
  for (const uint64_t n : box.shape) count *= n;
  return count;
}

bool inside(const Box& box, const Shape& shape) {
  if (box.offset.size() != shape.size() || box.shape.size() != shape.size())
    return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto end = checked_add(box.offset[d], box.shape[d]);
    if (!end || *end > shape[d]) return false;
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box common{Dims(a.offset.size(), 0), Dims(a.offset.size(), 0)};
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const uint64_t begin = std::max(a.offset[d], b.offset[d]);
    const uint64_t end =
        std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (begin >= end) return std::nullopt;
    common.offset[d] = begin;
    common.shape[d] = end - begin;
  }
  return common;
}

namespace {

// Returns the largest part that begins at element `begin` of the box, does not
// pass `end`, and is a box: fixed leading indexes, whole trailing dimensions,
// and a run of indexes in the one between.
FlatPart leading_part(const Box& box, const Dims& strides, uint64_t begin,
                      uint64_t end) {
  const size_t rank = box.shape.size();
  size_t d = 0;
  while (d + 1 < rank && (begin % strides[d] || end - begin < strides[d])) ++d;

  FlatPart part{.box = {Dims(rank, 0), Dims(rank, 1)}, .at = 0};
  uint64_t rest = begin;
  for (size_t k = 0; k < rank; ++k) {
    const uint64_t index = rest / strides[k];
    rest %= strides[k];
    part.box.offset[k] = box.offset[k] + (k <= d ? index : 0);
    if (k == d)
      part.box.shape[k] =
          std::min((end - begin) / strides[k], box.shape[k] - index);
    if (k > d) part.box.shape[k] = box.shape[k];
  }
  return part;
}

}  // namespace

std::vector<FlatPart> cut(const Box& box, const FlatRange& range) {
  std::vector<FlatPart> parts;
  if (range.begin >= range.end) return parts;
  if (box.shape.empty()) return {{box, 0}};
  const Dims strides = row_major_strides(box.shape);
  for (uint64_t at = range.begin; at < range.end;) {
    FlatPart part = leading_part(box, strides, at, range.end);
    part.at = at - range.begin;
    at += volume(part.box);
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace ckpt
