// SPDX-License-Identifier: Apache-2.0
// A sum that is rounded once, at its end: the order in which threads add their
// parts changes no bit of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ckpt::reshard {

class ExactSum {
 public:
  // mantissa * 2^exponent. Exponents as doubles have them, from -1074 on.
  void add(__int128 mantissa, int exponent);
  void add(double value, uint64_t times = 1);  // a finite one
  ExactSum& operator+=(const ExactSum& other);

  double value() const;  // the nearest double

 private:
  static constexpr int kLeast = -1074;  // of the lowest bit
  // From the lowest on, two's complement: 2^64 times the largest double.
  std::array<uint64_t, 35> limbs_{};
};

}  // namespace ckpt::reshard
