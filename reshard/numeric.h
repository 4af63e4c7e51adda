// SPDX-License-Identifier: Apache-2.0
// Statistics of elements (`inspect --stats`), and how far two tensors are
// apart. Sums are of doubles; their last digits depend on how many threads
// added them up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "ckpt/dtype.h"

namespace ckpt::reshard {

// Of the finite elements, as doubles; both parts of a complex number count.
struct Stats {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  double sum_of_squares = 0;
  uint64_t count = 0;  // of all elements
  uint64_t nans = 0;
  uint64_t infs = 0;
  uint64_t zeros = 0;  // of either sign
  // How many have |x| in [2^e, 2^(e+2)), e from kLeastExponent in steps of two;
  // smaller and larger ones count in the first and the last. No zeros.
  static constexpr int kLeastExponent = -48;
  static constexpr size_t kMagnitudes = 32;
  std::array<uint64_t, kMagnitudes> magnitudes{};

  bool finite() const { return nans == 0 && infs == 0; }
  Stats& operator+=(const Stats& other);
};

// Of the finite elements; NaN if there are none.
double mean(const Stats& stats);
double deviation(const Stats& stats);  // of the population

double norm(const Stats& stats);  // the root of the sum of squares

// Throws an unfaithful_error for a type without values (reshard/values.h).
void add_stats(DType dtype, const std::byte* in, uint64_t count, Stats& stats);

// Two elements agree where |a - b| <= atol + rtol * |b|, where both are NaN
// and where they are equal.
struct Comparison {
  double max_abs = 0;  // inf if only one of a pair is finite
  double max_rel = 0;  // |a - b| / |b|
  uint64_t count = 0;
  uint64_t mismatches = 0;
  uint64_t first_mismatch = 0;  // which element; if there are mismatches
  // Sums over the elements that are finite on both sides, for norms and the
  // angle. One that only one side has makes the first infinite.
  double squares = 0;  // of a - b; both parts of a complex number count
  double squares_a = 0, squares_b = 0;
  double products = 0;  // of a and b

  // Adds the result of the elements that follow.
  Comparison& operator+=(const Comparison& later);
};

void add_comparison(DType dtype_a, const std::byte* a, DType dtype_b,
                    const std::byte* b, uint64_t count, double rtol,
                    double atol, Comparison& comparison);

}  // namespace ckpt::reshard
