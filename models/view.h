// SPDX-License-Identifier: Apache-2.0
// A tensor as an arrangement of stored elements: what a dialect does to
// another's tensors without touching a byte.
//
//   View q = View::of(tensor);                       // [heads * hd, width]
//   q = q.reshape({heads, 2, hd / 2, width})         // half-split rows …
//           .permute({0, 2, 1, 3})                   // … interleaved
//           .reshape({heads * hd, width});
//   View::concat({q, k, v}, 0).into(target);
//
// All operations are exact and invertible; none copies or computes. The shape
// is backed by a grid: each dimension is cut into factors, fine enough that
// every piece is a box of it (Tensor::grid).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::families {

// The Transform of numbers that undoes this one; kNoTransform for any other.
uint8_t inverse_of(uint8_t transform);

class View {
 public:
  // Flat pieces become boxes. Replicas stay replicas. Throws unfaithful_error
  // for bit-packed types; extents must be located (ckpt::locate).
  static View of(const Tensor& tensor);
  // Every element is `value`, rounded to the dtype (floating-point or integer
  // types). Adds a kFill file to the catalog.
  static View filled(Catalog& catalog, DType dtype, const Shape& shape,
                     double value);

  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }

  // Row-major order stays; element counts must agree. Throws unfaithful_error
  // if they don't.
  View reshape(const Shape& shape) const;
  // axes[i]: the dimension that becomes dimension i.
  View permute(std::span<const uint32_t> axes) const;
  View permute(std::initializer_list<uint32_t> axes) const {
    return permute(std::span<const uint32_t>(axes.begin(), axes.size()));
  }
  // Elements [begin, begin + size) of a dimension.
  View slice(uint32_t dim, uint64_t begin, uint64_t size) const;
  // Views of one dtype and of one shape but for `dim`. At least one.
  static View concat(std::span<const View> views, uint32_t dim);
  // Along a new dimension in front.
  static View stack(std::span<const View> views);
  // Adds one Transform of numbers to every piece; kAddOne and kSubtractOne,
  // kNegatedExp and kLogOfNegated undo each other. Throws unfaithful_error for
  // dtypes that have no such arithmetic, and for a second one.
  View transform(uint8_t bits) const;

  // Sets shape, dtype, grid and pieces. The grid is left empty where that
  // takes no more than `spare` pieces for each that the view has.
  void into(Tensor& tensor, uint64_t spare = 64) const;

  size_t pieces() const { return parts_.size(); }

 private:
  struct Part {
    Dims offset, size;  // in the grid
    Dims strides;       // bytes, one for each factor
    uint64_t at = 0;    // bytes in the file, of the first element
    uint32_t file = 0;
    uint8_t transform = kNoTransform;
  };
  size_t rank() const { return shape_.size(); }
  size_t begin_of(uint32_t dim) const { return first_[dim]; }
  size_t end_of(uint32_t dim) const { return first_[dim + 1]; }
  // Elements that one step of the dimension's first factor spans.
  uint64_t inner_of(uint32_t dim) const;
  // Sizes that the factors after the first one of a dimension, after the
  // second one, … span; 1 left out.
  std::vector<uint64_t> spans(uint32_t dim) const;
  void refine(uint32_t dim, const std::vector<uint64_t>& spans);
  void coarsen(uint32_t dim);

  // On factors, whatever dimension they belong to; first_ is the caller's.
  void split_factor(size_t factor, uint64_t inner);
  void join_factor(size_t factor);
  void drop_factor(size_t factor);
  void insert_one(size_t factor);
  // How many parts there were if each dimension had one factor.
  uint64_t coarse_parts() const;

  DType dtype_ = DType::f32;
  Shape shape_;
  // The factors of dimension d are grid_[first_[d]] to grid_[first_[d + 1]].
  Dims grid_;
  std::vector<size_t> first_{0};
  std::vector<Part> parts_;
};

}  // namespace ckpt::families
