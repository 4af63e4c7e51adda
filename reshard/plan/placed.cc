// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/placed.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "ckpt/error.h"

namespace ckpt::reshard {
namespace {

bool is_whole(const Piece& piece, const Shape& shape) {
  return piece.box == Box::whole(shape) &&
         (!piece.flat || (piece.flat->begin == 0 &&
                          piece.flat->end == element_count(shape).value_or(0)));
}

bool is_row_major(const Extent& extent, const Shape& shape, uint64_t element) {
  if (extent.strides.empty()) return true;
  const Dims strides = row_major_strides(shape);
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] > 1 && extent.strides[d] != strides[d] * element) return false;
  return true;
}

Dims byte_strides(const Shape& shape, uint64_t element) {
  Dims strides = row_major_strides(shape);
  for (uint64_t& stride : strides) stride *= element;
  return strides;
}

void check_piece(const Tensor& tensor, const Piece& piece,
                 const std::string& path) {
  if (!inside(piece.box, space_of(tensor)))
    throw input_error({path, tensor.name},
                      "a piece at {} of shape {} leaves the tensor's shape {}",
                      to_string(piece.box.offset), to_string(piece.box.shape),
                      to_string(space_of(tensor)));
  if (piece.flat && (piece.flat->begin > piece.flat->end ||
                     piece.flat->end > volume(piece.box)))
    throw input_error({path, tensor.name},
                      "a flat piece of elements {}-{} leaves its box of {}",
                      piece.flat->begin, piece.flat->end, volume(piece.box));
}

// An expanded view may claim terabytes backed by a few stored bytes. It can be
// listed, but nobody wants it written out.
constexpr uint64_t kExpandedBytes = uint64_t{1} << 30;
constexpr uint64_t kExpandedRatio = 1024;

void check_expansion(const Tensor& tensor, const Piece& piece,
                     const std::string& path) {
  const Dims& strides = piece.extent.strides;
  uint64_t stored = 1, claimed = 1;
  for (size_t d = 0; d < strides.size(); ++d) {
    claimed *= piece.box.shape[d];
    if (strides[d]) stored *= piece.box.shape[d];
  }
  if (stored && claimed / stored > kExpandedRatio &&
      claimed >
          kExpandedBytes / std::max<uint64_t>(1, element_size(tensor.dtype)))
    throw unsafe_error({path, tensor.name}, "expands {} stored elements to {}",
                       stored, claimed)
        .with_hint("leave it out: --exclude '" + tensor.name + "'");
}

}  // namespace

Grid grid_of(DType dtype, const Shape& shape) {
  if (const uint64_t element = element_size(dtype)) return {shape, element};
  return {Shape{byte_size(dtype, shape).value_or(0)}, 1};
}

std::vector<uint32_t> first_of_equals(const Tensor& tensor) {
  const auto& pieces = tensor.pieces;
  std::vector<FlatRange> flat(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i)
    flat[i] = pieces[i].flat.value_or(FlatRange{0, volume(pieces[i].box)});
  const auto compare = [&](uint32_t a, uint32_t b) {
    return std::tie(pieces[a].box.offset, pieces[a].box.shape, flat[a].begin,
                    flat[a].end) <=> std::tie(pieces[b].box.offset,
                                              pieces[b].box.shape,
                                              flat[b].begin, flat[b].end);
  };
  std::vector<uint32_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](uint32_t a, uint32_t b) { return compare(a, b) < 0; });
  std::vector<uint32_t> first(pieces.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const bool again = i && compare(order[i - 1], order[i]) == 0;
    first[order[i]] = again ? first[order[i - 1]] : order[i];
  }
  return first;
}

const Shape& space_of(const Tensor& tensor) {
  return tensor.grid.empty() ? tensor.shape : tensor.grid;
}

std::vector<Placed> refine(const Placed& placed, const Shape& shape,
                           const Shape& grid) {
  Placed none = placed;
  none.box = {};
  none.strides = {};
  std::vector<Placed> boxes{none};
  for (size_t d = 0, f = 0; d < shape.size(); ++d) {
    Shape factors{grid[f++]};
    for (uint64_t n = factors[0]; n < shape[d] && f < grid.size(); ++f) {
      n *= grid[f];
      factors.push_back(grid[f]);
    }
    const uint64_t begin = placed.box.offset[d];
    const FlatRange range{begin, begin + placed.box.shape[d]};
    const Dims steps = row_major_strides(factors);
    std::vector<Placed> more;
    for (const FlatPart& part : cut(Box::whole(factors), range)) {
      for (Placed box : boxes) {
        box.offset += part.at * placed.strides[d];
        for (size_t i = 0; i < factors.size(); ++i) {
          box.box.offset.push_back(part.box.offset[i]);
          box.box.shape.push_back(part.box.shape[i]);
          box.strides.push_back(steps[i] * placed.strides[d]);
        }
        more.push_back(std::move(box));
      }
    }
    boxes = std::move(more);
  }
  return boxes;
}

std::vector<Placed> place(const Tensor& tensor, const std::string& path) {
  const Grid grid = grid_of(tensor.dtype, space_of(tensor));
  const bool packed = element_size(tensor.dtype) == 0;
  const std::vector<uint32_t> first = first_of_equals(tensor);
  std::vector<Placed> placed;
  placed.reserve(tensor.pieces.size());
  for (uint32_t i = 0; i < tensor.pieces.size(); ++i) {
    const Piece& piece = tensor.pieces[i];
    check_piece(tensor, piece, path);
    check_expansion(tensor, piece, path);
    Placed base{.file = piece.extent.file,
                .piece = i,
                .transform = piece.transform,
                .primary = first[i] == i};
    if (packed) {
      if (!is_whole(piece, tensor.shape) ||
          !is_row_major(piece.extent, tensor.shape, 1))
        throw unfaithful_error({path, tensor.name},
                               "{} packs elements into bits, so it can only be "
                               "moved whole",
                               name(tensor.dtype));
      base.box = Box::whole(grid.shape);
      base.strides = Dims{1};
      base.offset = piece.extent.offset;
      if (grid.shape[0]) placed.push_back(std::move(base));
      continue;
    }
    const Dims packed_strides = byte_strides(piece.box.shape, grid.element);
    if (!piece.flat) {
      base.box = piece.box;
      base.strides =
          piece.extent.strides.empty() ? packed_strides : piece.extent.strides;
      base.offset = piece.extent.offset;
      if (volume(base.box)) placed.push_back(std::move(base));
      continue;
    }
    for (FlatPart& part : cut(piece.box, *piece.flat)) {
      Placed one = base;
      one.box = std::move(part.box);
      one.strides = packed_strides;
      one.offset = piece.extent.offset + part.at * grid.element;
      placed.push_back(std::move(one));
    }
  }
  return placed;
}

}  // namespace ckpt::reshard
