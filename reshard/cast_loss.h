// SPDX-License-Identifier: Apache-2.0
// What a cast loses: finite values that the target's type has no room for,
// and values that it rounds to zero. Counted on the source's elements while
// they are in the cache.
//
//   |x| as an integer    0 | 1 … tiny | … | over … last | infinity | NaN
//                            become zero     too large
//
// A float's bits without its sign grow with its value, so each class is a
// range of them. The ranges are found from the casts themselves (cast_kernel),
// not written down.
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

// True if the type has infinities, which values too large for it become.
bool has_infinity(DType dtype);

class LossCounter {
 public:
  LossCounter(DType from, DType to);

  // False: the cast loses nothing of these two kinds (f16 to f32), or its
  // source is not a type of 16 bits or more.
  bool counts() const { return tiny_ != 0 || over_ <= last_; }

  // Elements of the source's type; they may begin at any byte.
  CastLoss count(std::span<const std::byte> elements) const;

  // Puts the largest number of the target's type, of the same sign, where
  // a finite element of `in` was too large for it.
  void saturate(const std::byte* in, std::byte* out, uint64_t count) const;

 private:
  DType from_;
  DType to_;
  uint64_t tiny_ = 0;  // the largest that becomes zero
  uint64_t over_ = 1;  // the least and the largest that are too large
  uint64_t last_ = 0;
  uint64_t most_ = 0;  // the target's largest number
};

// The counter of a pair, made once.
const LossCounter& loss_counter(DType from, DType to);

}  // namespace ckpt::reshard
