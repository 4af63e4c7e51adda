// SPDX-License-Identifier: Apache-2.0
// What a cast loses: finite values that are too large for the target's type,
// and values that round to zero. Counted on the source's elements while they
// are in the cache.
//
//   |x| as an integer    0 | 1 … tiny | … | over … last | infinity | NaN
//                            become zero     too large
//
// Without its sign, a float's bits grow with its value, so each class is a
// range. The ranges are derived from the casts themselves (cast_kernel), not
// written down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ckpt/dtype.h"

namespace ckpt::reshard {

struct CastLoss {
  uint64_t overflowed = 0;  // became infinite, NaN, or the largest number
  uint64_t zeroed = 0;      // were not zero
  double largest = 0;       // magnitude of those that overflowed

  bool any() const { return overflowed != 0 || zeroed != 0; }
  CastLoss& operator+=(const CastLoss& other);
};

// True if the type has infinities, which too large values become.
bool has_infinity(DType dtype);

class LossCounter {
 public:
  LossCounter(DType from, DType to);

  // False if the cast can lose neither kind (f16 to f32), or its source has
  // fewer than 16 bits.
  bool counts() const { return tiny_ != 0 || over_ <= last_; }

  // Elements of the source's type, at any alignment.
  CastLoss count(std::span<const std::byte> elements) const;

  // Where a finite element of `in` was too large, puts the largest number of
  // the target's type, with the same sign.
  void saturate(const std::byte* in, std::byte* out, uint64_t count) const;

 private:
  DType from_;
  DType to_;
  uint64_t tiny_ = 0;  // the largest that becomes zero
  uint64_t over_ = 1;  // the least and the largest that are too large
  uint64_t last_ = 0;
  uint64_t most_ = 0;  // the target's largest number
};

// The counter for a pair of types, made once.
const LossCounter& loss_counter(DType from, DType to);

}  // namespace ckpt::reshard
