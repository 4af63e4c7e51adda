// SPDX-License-Identifier: Apache-2.0
// The factors behind a view's shape.
//
//   split   [6] by 3   ─►  [2, 3]   a part [1, 5) of it becomes
//                                   (0, [1, 3)) and (1, [0, 2))
//   join    [2, 3]     ─►  [6]      parts that don't step evenly are cut
#include <algorithm>

#include "ckpt/error.h"
#include "models/view.h"

namespace ckpt::families {
namespace {

// A view that needs more is not an arrangement that any model uses.
constexpr uint64_t kMaxParts = uint64_t{1} << 24;

void replace(Dims& dims, size_t at, size_t count,
             std::initializer_list<uint64_t> values) {
  Dims result;
  for (size_t i = 0; i < at; ++i) result.push_back(dims[i]);
  for (const uint64_t value : values) result.push_back(value);
  for (size_t i = at + count; i < dims.size(); ++i) result.push_back(dims[i]);
  dims = std::move(result);
}

void check_parts(uint64_t parts) {
  if (parts > kMaxParts)
    throw unfaithful_error({}, "an arrangement of {} pieces or more", kMaxParts)
        .with_hint(
            "the source is cut in a way that this conversion can't "
            "follow: `ckpt unshard` it first");
}

}  // namespace

void View::split_factor(size_t f, uint64_t inner) {
  const uint64_t outer = grid_[f] / inner;
  std::vector<Part> parts;
  parts.reserve(parts_.size());
  // [begin, end) of the outer factor, [from, to) of the inner one.
  const auto add = [&](const Part& part, uint64_t begin, uint64_t end,
                       uint64_t from, uint64_t to) {
    if (begin >= end || from >= to) return;
    const uint64_t stride = part.strides[f];
    Part one = part;
    one.at += (begin * inner + from - part.offset[f]) * stride;
    replace(one.offset, f, 1, {begin, from});
    replace(one.size, f, 1, {end - begin, to - from});
    replace(one.strides, f, 1, {stride * inner, stride});
    parts.push_back(std::move(one));
  };
  for (const Part& part : parts_) {
    const uint64_t begin = part.offset[f];
    const uint64_t end = begin + part.size[f];
    const uint64_t first = begin / inner, last = end / inner;
    if (first == last) {
      add(part, first, first + 1, begin % inner, end % inner);
      continue;
    }
    const uint64_t full = begin % inner == 0 ? first : first + 1;
    if (full != first) add(part, first, first + 1, begin % inner, inner);
    add(part, full, last, 0, inner);
    add(part, last, last + 1, 0, end % inner);
  }
  check_parts(parts.size());
  parts_ = std::move(parts);
  replace(grid_, f, 1, {outer, inner});
}

void View::join_factor(size_t f) {
  const uint64_t inner = grid_[f + 1];
  std::vector<Part> parts;
  parts.reserve(parts_.size());
  const auto add = [&](const Part& part, uint64_t begin, uint64_t size,
                       uint64_t stride, uint64_t skipped) {
    Part one = part;
    one.at += skipped;
    replace(one.offset, f, 2, {begin});
    replace(one.size, f, 2, {size});
    replace(one.strides, f, 2, {stride});
    parts.push_back(std::move(one));
  };
  for (const Part& part : parts_) {
    const uint64_t rows = part.size[f], row = part.size[f + 1];
    const uint64_t step = part.strides[f], within = part.strides[f + 1];
    const uint64_t begin = part.offset[f] * inner + part.offset[f + 1];
    if (inner == 1) {
      add(part, part.offset[f], rows, step, 0);
    } else if (rows == 1 || (row == inner && step == within * inner)) {
      add(part, begin, rows * row, within, 0);
    } else {
      check_parts(parts.size() + rows);
      for (uint64_t i = 0; i < rows; ++i)
        add(part, begin + i * inner, row, within, i * step);
    }
  }
  check_parts(parts.size());
  parts_ = std::move(parts);
  replace(grid_, f, 2, {grid_[f] * inner});
}

void View::drop_factor(size_t f) {
  for (Part& part : parts_) {
    replace(part.offset, f, 1, {});
    replace(part.size, f, 1, {});
    replace(part.strides, f, 1, {});
  }
  replace(grid_, f, 1, {});
}

void View::insert_one(size_t f) {
  for (Part& part : parts_) {
    replace(part.offset, f, 0, {0});
    replace(part.size, f, 0, {1});
    replace(part.strides, f, 0, {0});
  }
  replace(grid_, f, 0, {1});
}

uint64_t View::inner_of(uint32_t dim) const {
  uint64_t inner = 1;
  for (size_t f = begin_of(dim) + 1; f < end_of(dim); ++f) inner *= grid_[f];
  return inner;
}

std::vector<uint64_t> View::spans(uint32_t dim) const {
  std::vector<uint64_t> all;
  uint64_t span = 1;
  for (size_t f = end_of(dim); f-- > begin_of(dim) + 1;) {
    span *= grid_[f];
    if (span != 1) all.push_back(span);
  }
  std::ranges::reverse(all);
  return all;
}

// `spans` divide each other and include those that the dimension has.
void View::refine(uint32_t dim, const std::vector<uint64_t>& spans) {
  size_t f = begin_of(dim);
  uint64_t inner = inner_of(dim);
  for (const uint64_t span : spans) {
    // Factor f spans grid_[f] * inner; the rest of it continues at f + 1.
    while (inner > span) inner /= grid_[++f];
    if (inner == span) continue;
    split_factor(f, span / inner);
    for (size_t d = dim + 1; d < first_.size(); ++d) ++first_[d];
    inner = span;
  }
}

void View::coarsen(uint32_t dim) {
  while (end_of(dim) - begin_of(dim) > 1) {
    join_factor(end_of(dim) - 2);
    for (size_t d = dim + 1; d < first_.size(); ++d) --first_[d];
  }
}

uint64_t View::coarse_parts() const {
  uint64_t count = 0;
  for (const Part& part : parts_) {
    uint64_t runs = 1;
    for (uint32_t dim = 0; dim < rank(); ++dim) {
      bool whole = true;  // the run so far includes all inner factors
      uint64_t span = 1, stride = part.strides[end_of(dim) - 1];
      for (size_t f = end_of(dim); f-- > begin_of(dim);) {
        const uint64_t size = part.size[f];
        const bool one_run = span == 1 || size == 1 ||
                             (whole && part.strides[f] == stride * span);
        if (!one_run) runs *= size;
        if (span == 1) stride = part.strides[f];
        whole = whole && one_run && size == grid_[f];
        span *= grid_[f];
      }
    }
    count += runs;
    if (count > kMaxParts) break;
  }
  return count;
}

}  // namespace ckpt::families
