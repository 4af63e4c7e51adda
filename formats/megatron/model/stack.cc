// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/stack.h"

#include <algorithm>

#include "ckpt/error.h"

namespace ckpt::megatron {
namespace {

Dims with(const Dims& dims, uint32_t at, uint64_t value) {
  Dims all;
  for (uint32_t d = 0; d <= dims.size(); ++d) {
    if (d == at) all.push_back(value);
    if (d < dims.size()) all.push_back(dims[d]);
  }
  return all;
}

Dims without(const Dims& dims, uint32_t at) {
  Dims all;
  for (uint32_t d = 0; d < dims.size(); ++d)
    if (d != at) all.push_back(dims[d]);
  return all;
}

void check_located(const Tensor& tensor, const Piece& piece) {
  if (piece.extent.archive != 0)
    throw bug_error({{}, tensor.name}, "a piece that is not located");
}

void check_alike(std::span<const Tensor* const> parts) {
  for (const Tensor* part : parts)
    if (part->dtype != parts[0]->dtype || part->shape != parts[0]->shape)
      throw unfaithful_error(
          {{}, part->name}, "{} {} can't be stacked with {}, which is {} {}",
          name(part->dtype), to_string(part->shape), parts[0]->name,
          name(parts[0]->dtype), to_string(parts[0]->shape));
}

// The tensor without its pieces, with a new shape.
Tensor shell(const Tensor& tensor, const Dims& shape) {
  Tensor made;
  made.name = tensor.name;
  made.dtype = tensor.dtype;
  made.shape = shape;
  made.kind = tensor.kind;
  made.param = tensor.param;
  made.state = tensor.state;
  made.tp = tensor.tp;
  made.dp_replicated = tensor.dp_replicated;
  made.pinned = tensor.pinned;
  made.requires_grad = tensor.requires_grad;
  made.parameter = tensor.parameter;
  if (!byte_size(made.dtype, made.shape))
    throw unfaithful_error({{}, tensor.name}, "would be too large");
  return made;
}

// Bytes from one index of each dimension to the next.
Dims strides_of(const Tensor& tensor, const Piece& piece) {
  if (!piece.extent.strides.empty()) return piece.extent.strides;
  Dims strides = row_major_strides(piece.box.shape);
  for (uint64_t& stride : strides) stride *= element_size(tensor.dtype);
  return strides;
}

// The elements of a piece at one index of an axis, without that axis.
Piece slice(const Tensor& tensor, const Piece& piece, uint32_t axis,
            uint64_t index) {
  Piece out = piece;
  const Dims strides = strides_of(tensor, piece);
  out.flat.reset();
  out.extent.offset += (index - piece.box.offset[axis]) * strides[axis];
  out.box = {without(piece.box.offset, axis), without(piece.box.shape, axis)};
  // What was contiguous stays so along the first axis.
  const bool packed =
      piece.extent.strides.empty() && (axis == 0 || piece.box.shape[axis] == 1);
  out.extent.strides = packed ? Dims() : without(strides, axis);
  return out;
}

bool holds(const Box& box, uint32_t axis, uint64_t index) {
  return box.offset[axis] <= index &&
         index - box.offset[axis] < box.shape[axis];
}

// A flat range as contiguous boxes.
std::vector<Piece> boxes_of(const Tensor& tensor, const Piece& piece) {
  if (!piece.flat) return {piece};
  std::vector<Piece> pieces;
  for (const FlatPart& part : cut(piece.box, *piece.flat)) {
    Piece one = piece;
    one.flat.reset();
    one.box = part.box;
    one.extent.offset += part.at * element_size(tensor.dtype);
    pieces.push_back(std::move(one));
  }
  return pieces;
}

void check_joined(const Tensor& part, const Tensor& first, uint32_t axis) {
  Dims shape = part.shape;
  if (axis < shape.size() && axis < first.shape.size())
    shape[axis] = first.shape[axis];
  if (part.dtype != first.dtype || shape != first.shape || axis >= shape.size())
    throw unfaithful_error({{}, part.name}, "{} {} does not join {}, {} {}",
                           name(part.dtype), to_string(part.shape), first.name,
                           name(first.dtype), to_string(first.shape));
}

// The part of a piece in `count` indices of an axis, from `begin` on.
Piece clip(const Tensor& tensor, const Piece& piece, uint32_t axis,
           uint64_t begin, uint64_t count) {
  Piece out = piece;
  const Dims strides = strides_of(tensor, piece);
  const uint64_t from = std::max(begin, piece.box.offset[axis]);
  const uint64_t end =
      std::min(begin + count, piece.box.offset[axis] + piece.box.shape[axis]);
  out.extent.offset += (from - piece.box.offset[axis]) * strides[axis];
  out.box.offset[axis] = from - begin;
  out.box.shape[axis] = end - from;
  bool packed = piece.extent.strides.empty();
  for (uint32_t d = 0; d < axis; ++d)
    packed = packed && piece.box.shape[d] == 1;
  if (out.box.shape[axis] == piece.box.shape[axis]) packed = true;
  out.extent.strides = packed ? piece.extent.strides : strides;
  return out;
}

bool meets(const Box& box, uint32_t axis, uint64_t begin, uint64_t count) {
  return volume(box) != 0 && box.offset[axis] < begin + count &&
         begin < box.offset[axis] + box.shape[axis];
}

}  // namespace

Tensor stack(std::span<const Tensor* const> parts, uint32_t axis) {
  check_alike(parts);
  Tensor made = shell(*parts[0], with(parts[0]->shape, axis, parts.size()));
  if (made.tp.state == TpRule::State::kSplit && made.tp.dim >= axis)
    ++made.tp.dim;
  for (uint64_t i = 0; i < parts.size(); ++i)
    for (const Piece& piece : parts[i]->pieces) {
      check_located(*parts[i], piece);
      Piece added = piece;
      added.box = {with(piece.box.offset, axis, i),
                   with(piece.box.shape, axis, 1)};
      // Nothing steps along an axis of one element.
      if (!piece.extent.strides.empty())
        added.extent.strides = with(piece.extent.strides, axis, 0);
      made.pieces.push_back(std::move(added));
    }
  return made;
}

Tensor join(std::span<const Tensor* const> parts, uint32_t axis) {
  Dims shape = parts[0]->shape;
  std::optional<uint64_t> extent = 0;
  for (const Tensor* part : parts) {
    check_joined(*part, *parts[0], axis);
    if (extent) extent = checked_add(*extent, part->shape[axis]);
  }
  if (!extent)
    throw unfaithful_error({{}, parts[0]->name}, "would be too large");
  shape[axis] = *extent;
  Tensor made = shell(*parts[0], shape);
  uint64_t at = 0;
  for (const Tensor* part : parts) {
    for (const Piece& piece : part->pieces)
      made.pieces.emplace_back(piece).box.offset[axis] += at;
    at += part->shape[axis];
  }
  return made;
}

Tensor part(const Tensor& whole, uint32_t axis, uint64_t index) {
  if (element_size(whole.dtype) == 0)
    throw unfaithful_error({{}, whole.name}, "{} can't be cut into layers",
                           name(whole.dtype));
  Tensor made = shell(whole, without(whole.shape, axis));
  if (made.tp.state == TpRule::State::kSplit && made.tp.dim >= axis) {
    if (made.tp.dim == axis)
      made.tp = {};
    else
      --made.tp.dim;
  }
  for (const Piece& piece : whole.pieces) {
    if (!holds(piece.box, axis, index)) continue;
    check_located(whole, piece);
    for (const Piece& box : boxes_of(whole, piece))
      if (holds(box.box, axis, index))
        made.pieces.push_back(slice(whole, box, axis, index));
  }
  return made;
}

Tensor range(const Tensor& whole, uint32_t axis, uint64_t begin,
             uint64_t count) {
  if (element_size(whole.dtype) == 0)
    throw unfaithful_error({{}, whole.name}, "{} can't be cut into parts",
                           name(whole.dtype));
  Dims shape = whole.shape;
  shape[axis] = count;
  Tensor made = shell(whole, shape);
  for (const Piece& piece : whole.pieces) {
    if (!meets(piece.box, axis, begin, count)) continue;
    check_located(whole, piece);
    for (const Piece& box : boxes_of(whole, piece))
      if (meets(box.box, axis, begin, count))
        made.pieces.push_back(clip(whole, box, axis, begin, count));
  }
  return made;
}

}  // namespace ckpt::megatron
