// SPDX-License-Identifier: Apache-2.0
#include "formats/rank_cut.h"

#include <utility>

namespace ckpt::formats {
namespace {

// Row-major without gaps; strides of dimensions of size 1 don't matter.
bool is_packed(const Shape& size, const Dims& strides, uint64_t element) {
  const Dims packed = row_major_strides(size);
  for (size_t d = 0; d < size.size(); ++d)
    if (size[d] != 1 && strides[d] != packed[d] * element) return false;
  return true;
}

// The extent of a box of elements in a stored tensor.
Extent extent_of(const Extent& stored, uint64_t element, const Shape& shape,
                 const Dims& at, const Shape& size) {
  Extent extent = stored;
  if (extent.strides.empty()) {
    extent.strides = row_major_strides(shape);
    for (uint64_t& stride : extent.strides) stride *= element;
  }
  for (size_t d = 0; d < size.size(); ++d)
    extent.offset += at[d] * extent.strides[d];
  if (is_packed(size, extent.strides, element)) extent.strides.clear();
  return extent;
}

// Cuts a piece along its first dimensions until each is contiguous.
void add_contiguous(const Piece& piece, Tensor& tensor) {
  if (piece.extent.strides.empty()) {
    tensor.pieces.push_back(piece);
    return;
  }
  const Dims& strides = piece.extent.strides;
  const uint64_t element = element_size(tensor.dtype);
  size_t d = 0;
  while (piece.box.shape[d] == 1) ++d;  // a strided piece has a longer one
  for (uint64_t i = 0; i < piece.box.shape[d]; ++i) {
    Piece slice = piece;
    slice.box.offset[d] += i;
    slice.box.shape[d] = 1;
    slice.extent.offset += i * strides[d];
    if (is_packed(slice.box.shape, strides, element))
      slice.extent.strides.clear();
    add_contiguous(slice, tensor);
  }
}

}  // namespace

Cut Cut::even(uint32_t dim, uint64_t size, uint32_t groups) {
  Cut cut{.dim = dim, .segments = {}};
  for (uint32_t g = 0; g < groups; ++g)
    cut.segments.push_back({.size = size / groups, .repeat = 1});
  return cut;
}

std::optional<uint64_t> whole_size(uint64_t local, uint32_t ranks,
                                   uint32_t repeat) {
  return checked_mul(local, ranks / repeat);
}

bool fits(const Cut& cut, const Shape& shape, uint32_t ranks) {
  if (cut.whole()) return true;
  if (cut.dim >= shape.size()) return false;
  uint64_t sum = 0;
  for (const Segment& segment : cut.segments) {
    if (segment.repeat == 0 || ranks % segment.repeat != 0) return false;
    if (segment.size % (ranks / segment.repeat) != 0) return false;
    const auto next = checked_add(sum, segment.size);
    if (!next) return false;
    sum = *next;
  }
  return sum == shape[cut.dim];
}

bool join_parts(const Cut& cut, uint32_t ranks, Tensor& tensor) {
  if (!cut.whole()) {
    if (cut.dim >= tensor.shape.size()) return false;
    uint64_t& size = tensor.shape[cut.dim] = 0;
    for (const Segment& segment : cut.segments) size += segment.size;
  }
  return byte_size(tensor.dtype, tensor.shape) &&
         fits(cut, tensor.shape, ranks) &&
         (cut.whole() || element_size(tensor.dtype) != 0);
}

Shape local_shape(const Cut& cut, const Shape& shape, uint32_t ranks) {
  Shape local = shape;
  if (!cut.whole())
    local[cut.dim] = cuts::count_of(cuts::equal(cut.segments, ranks, 0));
  return local;
}

std::vector<cuts::Part> parts_of(const Cut& cut, const Shape& shape,
                                 uint32_t ranks, uint32_t rank) {
  if (cut.whole()) return {cuts::whole(shape)};
  return cuts::parts(shape, cut.dim, cuts::equal(cut.segments, ranks, rank));
}

void add_pieces(const Cut& cut, uint32_t ranks, uint32_t rank,
                const Extent& extent, uint8_t transform, Tensor& tensor) {
  const Shape local = local_shape(cut, tensor.shape, ranks);
  for (cuts::Part& part : parts_of(cut, tensor.shape, ranks, rank)) {
    if (volume(part.box) == 0) continue;
    Piece piece;
    piece.extent = extent_of(extent, element_size(tensor.dtype), local, part.at,
                             part.box.shape);
    piece.transform = transform;
    piece.box = std::move(part.box);
    tensor.pieces.push_back(std::move(piece));
  }
}

void add_target_pieces(const Cut& cut, uint32_t ranks, uint32_t rank,
                       uint32_t file, uint64_t offset, Tensor& tensor) {
  Tensor parts;
  parts.dtype = tensor.dtype;
  parts.shape = tensor.shape;
  add_pieces(cut, ranks, rank, {.offset = offset, .strides = {}, .file = file},
             kNoTransform, parts);
  for (const Piece& part : parts.pieces) add_contiguous(part, tensor);
}

}  // namespace ckpt::formats
