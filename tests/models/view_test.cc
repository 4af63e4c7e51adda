// SPDX-License-Identifier: Apache-2.0
// Views against arrays: random rearrangements, applied once to pieces and once
// to the elements themselves.
#include "models/view.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "ckpt/error.h"

using ckpt::Box;
using ckpt::Catalog;
using ckpt::Dims;
using ckpt::DType;
using ckpt::Piece;
using ckpt::Shape;
using ckpt::Tensor;
using ckpt::families::View;

namespace {

// An array whose elements are byte numbers in one file.
struct Array {
  Shape shape;
  std::vector<uint64_t> at;
};

uint64_t count(const Shape& shape) { return *ckpt::element_count(shape); }

// Calls f(index, position in the row-major order) for every element.
template <class F>
void each(const Shape& shape, F f) {
  Dims index(shape.size(), 0);
  for (uint64_t n = 0; n < count(shape); ++n) {
    f(index, n);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

uint64_t position(const Dims& index, const Shape& shape) {
  uint64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

Array permute(const Array& a, const std::vector<uint32_t>& axes) {
  Array b;
  for (const uint32_t axis : axes) b.shape.push_back(a.shape[axis]);
  b.at.resize(a.at.size());
  each(b.shape, [&](const Dims& index, uint64_t n) {
    Dims from(index.size(), 0);
    for (size_t i = 0; i < axes.size(); ++i) from[axes[i]] = index[i];
    b.at[n] = a.at[position(from, a.shape)];
  });
  return b;
}

Array slice(const Array& a, uint32_t dim, uint64_t begin, uint64_t size) {
  Array b{a.shape, {}};
  b.shape[dim] = size;
  each(b.shape, [&](const Dims& index, uint64_t) {
    Dims from = index;
    from[dim] += begin;
    b.at.push_back(a.at[position(from, a.shape)]);
  });
  return b;
}

Array concat(const std::vector<Array>& all, uint32_t dim) {
  Array b{all[0].shape, {}};
  b.shape[dim] = 0;
  for (const Array& a : all) b.shape[dim] += a.shape[dim];
  each(b.shape, [&](const Dims& index, uint64_t) {
    Dims from = index;
    size_t which = 0;
    while (from[dim] >= all[which].shape[dim])
      from[dim] -= all[which++].shape[dim];
    b.at.push_back(all[which].at[position(from, all[which].shape)]);
  });
  return b;
}

// Reads a view's pieces by the rules of catalog.h.
Array read(const View& view, uint64_t spare) {
  Tensor tensor;
  view.into(tensor, spare);
  const Shape& grid = tensor.grid.empty() ? tensor.shape : tensor.grid;
  REQUIRE(count(grid) == count(tensor.shape));
  Array a{tensor.shape, std::vector<uint64_t>(count(tensor.shape), UINT64_MAX)};
  for (const Piece& piece : tensor.pieces) {
    REQUIRE(ckpt::inside(piece.box, grid));
    each(piece.box.shape, [&](const Dims& index, uint64_t) {
      Dims to = index;
      uint64_t at = piece.extent.offset;
      for (size_t d = 0; d < index.size(); ++d) {
        to[d] += piece.box.offset[d];
        at += index[d] * piece.extent.strides[d];
      }
      uint64_t& element = a.at[position(to, grid)];
      REQUIRE(element == UINT64_MAX);
      element = at;
    });
  }
  REQUIRE(std::ranges::count(a.at, UINT64_MAX) == 0);
  return a;
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  uint64_t below(uint64_t n) { return engine_() % n; }
  // Between `low` and `high`, both included.
  uint64_t in(uint64_t low, uint64_t high) {
    return low + below(high - low + 1);
  }

  // A tensor in shards of rows or columns, or one flat after the other.
  std::pair<View, Array> tensor(const Shape& shape, uint64_t file_offset) {
    Tensor tensor{.name = "t", .dtype = DType::f32, .shape = shape};
    Array array{shape, std::vector<uint64_t>(count(shape), 0)};
    const Dims strides = ckpt::row_major_strides(shape);
    if (below(3) == 0) {
      uint64_t begin = 0;
      while (begin < count(shape)) {
        const uint64_t end = std::min(count(shape), begin + in(1, 9));
        Piece piece;
        piece.box = Box::whole(shape);
        piece.flat = ckpt::FlatRange{begin, end};
        piece.extent.offset = file_offset + 4 * begin;
        tensor.pieces.push_back(piece);
        begin = end;
      }
      std::iota(array.at.begin(), array.at.end(), 0);
      for (uint64_t& at : array.at) at = file_offset + 4 * at;
      return {View::of(tensor), array};
    }
    const size_t dim = below(shape.size());
    uint64_t begin = 0;
    while (begin < shape[dim]) {
      const uint64_t end = std::min(shape[dim], begin + in(1, 5));
      Piece piece;
      piece.box = Box::whole(shape);
      piece.box.offset[dim] = begin;
      piece.box.shape[dim] = end - begin;
      piece.extent.offset = file_offset;
      const Dims packed = ckpt::row_major_strides(piece.box.shape);
      each(piece.box.shape, [&](const Dims& index, uint64_t) {
        Dims to = index;
        to[dim] += begin;
        array.at[position(to, shape)] =
            file_offset + 4 * position(index, piece.box.shape);
      });
      file_offset += 4 * ckpt::volume(piece.box);
      tensor.pieces.push_back(piece);
      begin = end;
    }
    return {View::of(tensor), array};
  }

  // Another shape with as many elements.
  Shape factors(uint64_t n) {
    Shape shape;
    while (n > 1 && shape.size() < 4) {
      std::vector<uint64_t> divisors;
      for (uint64_t d = 1; d <= n; ++d)
        if (n % d == 0) divisors.push_back(d);
      shape.push_back(divisors[below(divisors.size())]);
      n /= shape.back();
    }
    if (n != 1 || shape.empty()) shape.push_back(n);
    return shape;
  }

  std::vector<uint32_t> axes(size_t rank) {
    std::vector<uint32_t> order(rank);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), engine_);
    return order;
  }

 private:
  std::mt19937 engine_;
};

}  // namespace

TEST_CASE("a view says what arrays say, whatever is done to both") {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Shape shape{random.in(1, 12), random.in(1, 3) * random.in(1, 4)};
    auto made = random.tensor(shape, 1000);
    View view = made.first;
    Array array = made.second;
    for (int step = 0; step < 6; ++step) {
      CAPTURE(step);
      const size_t rank = array.shape.size();
      switch (random.below(5)) {
        case 0:
        case 1:
          array.shape = random.factors(array.at.size());
          view = view.reshape(array.shape);
          break;
        case 2: {
          const std::vector<uint32_t> axes = random.axes(rank);
          array = permute(array, axes);
          view = view.permute(axes);
          break;
        }
        case 3: {
          const auto dim = static_cast<uint32_t>(random.below(rank));
          const uint64_t begin = random.below(array.shape[dim]);
          const uint64_t size = random.in(1, array.shape[dim] - begin);
          array = slice(array, dim, begin, size);
          view = view.slice(dim, begin, size);
          break;
        }
        default: {
          const auto dim = static_cast<uint32_t>(random.below(rank));
          Shape other = array.shape;
          other[dim] = random.in(1, 6);
          if (count(other) + array.at.size() > 4000) break;
          auto more = random.tensor(other, 1000000 * (step + 1u));
          array = concat({array, more.second}, dim);
          const View both[] = {view, more.first};
          view = View::concat(both, dim);
        }
      }
      REQUIRE(view.shape() == array.shape);
    }
    REQUIRE(read(view, 1).at == array.at);
    REQUIRE(read(view, UINT64_MAX).at == array.at);
    Tensor tensor{.name = "t"};
    view.into(tensor, 1);
    REQUIRE(read(View::of(tensor), 1).at == array.at);
  }
}

TEST_CASE("interleaved rows are one box of a finer grid") {
  const uint64_t heads = 4, half = 8, width = 16;
  Tensor tensor{
      .name = "q", .dtype = DType::bf16, .shape = {heads * 2 * half, width}};
  tensor.pieces.push_back({.box = Box::whole(tensor.shape)});
  const View view = View::of(tensor)
                        .reshape({heads, 2, half, width})
                        .permute({0, 2, 1, 3})
                        .reshape(tensor.shape);
  Tensor rows = tensor;
  view.into(rows, 1);
  CHECK(rows.shape == tensor.shape);
  CHECK(rows.grid == Shape{heads, half, 2, width});
  CHECK(rows.pieces.size() == 1);
  // And back again, without a trace.
  View::of(rows)
      .reshape({heads, half, 2, width})
      .permute({0, 2, 1, 3})
      .reshape(tensor.shape)
      .into(rows, 1);
  CHECK(rows.grid.empty());
  CHECK(rows.pieces.size() == 1);
  CHECK(rows.pieces[0].box == Box::whole(tensor.shape));
}

TEST_CASE("one is added and subtracted once") {
  Tensor tensor{.name = "w", .dtype = DType::bf16, .shape = {4}};
  tensor.pieces.push_back({.box = Box::whole(tensor.shape)});
  const View more = View::of(tensor).transform(ckpt::kAddOne);
  Tensor norm;
  more.into(norm);
  CHECK(norm.pieces[0].transform == ckpt::kAddOne);
  more.transform(ckpt::kSubtractOne).into(norm);
  CHECK(norm.pieces[0].transform == ckpt::kNoTransform);
  CHECK_THROWS_AS(more.transform(ckpt::kAddOne), ckpt::Error);
  const View decay = View::of(tensor).transform(ckpt::kNegatedExp);
  decay.transform(ckpt::kLogOfNegated).into(norm);
  CHECK(norm.pieces[0].transform == ckpt::kNoTransform);
  CHECK_THROWS_AS(decay.transform(ckpt::kAddOne), ckpt::Error);
  tensor.dtype = DType::i32;
  CHECK_THROWS_AS(View::of(tensor).transform(ckpt::kAddOne), ckpt::Error);
}

TEST_CASE("constants are files of one element") {
  Catalog catalog;
  Tensor ones;
  View::filled(catalog, DType::bf16, {3, 2}, 1).into(ones);
  REQUIRE(catalog.files.size() == 1);
  CHECK(catalog.files[0].fill == std::string("\x80\x3f"));
  CHECK(catalog.files[0].size == 12);
  CHECK(ones.shape == Shape{3, 2});
}

TEST_CASE("what does not fit is refused") {
  Tensor tensor{.name = "t", .dtype = DType::f32, .shape = {4, 3}};
  tensor.pieces.push_back({.box = Box::whole(tensor.shape)});
  const View view = View::of(tensor);
  CHECK_THROWS_AS(view.reshape({5, 3}), ckpt::Error);
  CHECK_THROWS_AS(view.slice(0, 3, 2), ckpt::Error);
  CHECK_THROWS_AS(view.slice(2, 0, 1), ckpt::Error);
  const View both[] = {view, view.reshape({3, 4})};
  CHECK_THROWS_AS(View::concat(both, 0), ckpt::Error);
}
