// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/cut.h"

#include "ckpt/error.h"

namespace ckpt::megatron {
namespace {

using State = TpRule::State;

bool is_split(const TpRule& rule, uint64_t ranks) {
  return rule.state == State::kSplit && ranks > 1;
}

// A contiguous box of a contiguous part stays so without strides.
Extent sub_extent(const LocalTensor& part, const Dims& strides,
                  const cuts::Part& cut) {
  Extent extent = part.extent;
  for (size_t d = 0; d < strides.size(); ++d)
    extent.offset += cut.at[d] * strides[d];
  bool rows = part.extent.strides.empty();
  for (size_t d = 1; d < strides.size(); ++d)
    rows = rows && cut.box.shape[d] == part.shape[d];
  extent.strides = rows ? Dims{} : strides;
  return extent;
}

// One piece for each head and part; see the picture in the header.
void add_old_rows(Tensor& tensor, const LocalTensor& part, uint64_t slot,
                  const RowOrder& order) {
  const uint64_t rows = part.shape[0];
  const uint64_t hn = rows / (order.heads * order.parts);
  Dims strides = strides_of(part);
  const uint64_t row = strides[0];
  if (order.version == 1) strides[0] = row * order.parts;
  for (uint64_t head = 0; head < order.heads; ++head) {
    for (uint64_t k = 0; k < order.parts; ++k) {
      Piece piece;
      piece.box = Box::whole(part.shape);
      piece.box.offset[0] = slot * rows + (head * order.parts + k) * hn;
      piece.box.shape[0] = hn;
      const uint64_t from = order.version == 1 ? head * hn * order.parts + k
                                               : (k * order.heads + head) * hn;
      piece.extent = part.extent;
      piece.extent.offset += from * row;
      if (order.version == 1 || !part.extent.strides.empty())
        piece.extent.strides = strides;
      piece.transform = part.transform;
      tensor.pieces.push_back(std::move(piece));
    }
  }
}

}  // namespace

Dims strides_of(const LocalTensor& part) {
  if (!part.extent.strides.empty()) return part.extent.strides;
  Dims strides = row_major_strides(part.shape);
  for (uint64_t& stride : strides) stride *= element_size(part.dtype);
  return strides;
}

std::optional<Shape> whole_shape(const Shape& local, const TpRule& rule,
                                 uint64_t ranks) {
  if (!is_split(rule, ranks)) return local;
  if (rule.dim >= local.size() || local[rule.dim] % rule.groups)
    return std::nullopt;
  const auto size = checked_mul(local[rule.dim], ranks);
  if (!size) return std::nullopt;
  Shape whole = local;
  whole[rule.dim] = *size;
  if (!element_count(whole)) return std::nullopt;
  return whole;
}

Shape part_shape(const Shape& whole, const TpRule& rule, uint64_t ranks) {
  Shape local = whole;
  if (is_split(rule, ranks)) local[rule.dim] /= ranks;
  return local;
}

std::vector<cuts::Part> cut_boxes(const Shape& whole, const TpRule& rule,
                                  uint64_t slot, uint64_t ranks,
                                  const Groups& groups) {
  if (!is_split(rule, ranks)) return {cuts::whole(whole)};
  std::vector<cuts::Segment> segments;
  for (const uint64_t size : groups) segments.push_back({size, 1});
  return cuts::parts(
      whole, rule.dim,
      groups.empty() ? cuts::chunks(whole[rule.dim], rule.groups, ranks, slot)
                     : cuts::equal(segments, ranks, slot));
}

void add_part(Tensor& tensor, const LocalTensor& part, const TpRule& rule,
              uint64_t slot, uint64_t ranks, const RowOrder& order,
              const Groups& groups) {
  const bool old = order.version < 2 && order.heads > 0 &&
                   !part.shape.empty() && part.shape[0] != 0;
  if (old)
    return add_old_rows(tensor, part, is_split(rule, ranks) ? slot : 0, order);
  const Dims strides = strides_of(part);
  for (cuts::Part& cut : cut_boxes(tensor.shape, rule, slot, ranks, groups)) {
    Piece piece;
    piece.extent = sub_extent(part, strides, cut);
    piece.box = std::move(cut.box);
    piece.transform = part.transform;
    tensor.pieces.push_back(std::move(piece));
  }
}

}  // namespace ckpt::megatron
