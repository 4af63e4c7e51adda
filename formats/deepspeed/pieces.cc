// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/pieces.h"

#include <algorithm>

namespace ckpt::deepspeed {
namespace {

std::vector<Segment> segments_of(const Joined& joined, size_t t,
                                 const Shape& local) {
  if (!joined.ranks[t].empty() || !joined.replicated) return joined.ranks[t];
  return {{0, 0, local.empty() ? 1 : local[joined.dim]}};
}

// A segment's part of the slice, in the slice's coordinates.
Box local_box(const Shape& local, uint32_t dim, const Segment& segment) {
  Box box = Box::whole(local);
  if (local.empty()) return box;
  box.offset[dim] = segment.local;
  box.shape[dim] = segment.length;
  return box;
}

Box to_global(Box box, uint32_t dim, const Segment& segment) {
  if (!box.offset.empty())
    box.offset[dim] = box.offset[dim] - segment.local + segment.global;
  return box;
}

Dims byte_strides(const Shape& shape, uint64_t item) {
  Dims strides = row_major_strides(shape);
  for (uint64_t& stride : strides) stride *= item;
  return strides;
}

}  // namespace

void add_range(std::vector<Piece>& pieces, const Joined& joined, size_t t,
               const Shape& local, const FlatRange& range, const Flat& flat,
               uint64_t at) {
  const uint64_t item = element_size(flat.dtype);
  const uint64_t begin = flat.offset + at * item;
  const auto segments = segments_of(joined, t, local);
  // One run of rows from the first: the range stays one range.
  if (segments.size() == 1 && segments[0].local == 0 &&
      (local.empty() || joined.dim == 0 ||
       segments[0].length == local[joined.dim])) {
    Piece piece;
    piece.box = to_global(local_box(local, joined.dim, segments[0]), joined.dim,
                          segments[0]);
    const uint64_t count = volume(piece.box);
    const FlatRange clipped{range.begin, std::min(range.end, count)};
    if (clipped.begin >= clipped.end) return;
    if (clipped != FlatRange{0, count}) piece.flat = clipped;
    piece.extent = {.offset = begin, .strides = {}, .file = flat.file};
    piece.transform = flat.transform;
    pieces.push_back(std::move(piece));
    return;
  }
  for (const FlatPart& part : cut(Box::whole(local), range)) {
    const Dims strides = byte_strides(part.box.shape, item);
    for (const Segment& segment : segments) {
      const auto common =
          intersect(part.box, local_box(local, joined.dim, segment));
      if (!common) continue;
      Piece piece;
      piece.extent = {.offset = begin + part.at * item,
                      .strides = strides,
                      .file = flat.file};
      for (size_t d = 0; d < strides.size(); ++d)
        piece.extent.offset +=
            (common->offset[d] - part.box.offset[d]) * strides[d];
      piece.box = to_global(*common, joined.dim, segment);
      piece.transform = flat.transform;
      pieces.push_back(std::move(piece));
    }
  }
}

void add_slice(std::vector<Piece>& pieces, const Joined& joined, size_t t,
               const Shape& local, DType dtype, const Extent& extent,
               uint8_t transform) {
  if (element_count(local) == 0u) return;
  const auto segments = segments_of(joined, t, local);
  const bool whole = segments.size() == 1 &&
                     (local.empty() || segments[0].length == local[joined.dim]);
  const Dims strides = extent.strides.empty()
                           ? byte_strides(local, element_size(dtype))
                           : extent.strides;
  for (const Segment& segment : segments) {
    const Box box = local_box(local, joined.dim, segment);
    Piece piece;
    piece.extent = extent;
    if (!whole) {
      piece.extent.strides = strides;
      piece.extent.offset += segment.local * strides[joined.dim];
    }
    piece.box = to_global(box, joined.dim, segment);
    piece.transform = transform;
    pieces.push_back(std::move(piece));
  }
}

bool add_replicas(std::vector<Piece>& pieces, std::vector<Piece> replicas) {
  // All ranks' pieces are in the same order, so the first set is a prefix.
  if (replicas.size() > pieces.size()) return false;
  for (size_t i = 0; i < replicas.size(); ++i)
    if (replicas[i].box != pieces[i].box || replicas[i].flat != pieces[i].flat)
      return false;
  pieces.insert(pieces.end(), std::make_move_iterator(replicas.begin()),
                std::make_move_iterator(replicas.end()));
  return true;
}

}  // namespace ckpt::deepspeed
