// SPDX-License-Identifier: Apache-2.0
// Statistics of a tensor's elements (`inspect --stats`). Sums are exact until
// they are rounded once, so that no number depends on the number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

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

  // The smallest element that at least so many thousandths of them are no
  // larger than. Of one tensor: a sum of two has none.
  static constexpr std::array<uint32_t, 9> kThousandths{1,   10,  50,  250, 500,
                                                        750, 950, 990, 999};
  using Quantiles = std::array<double, kThousandths.size()>;
  std::optional<Quantiles> quantiles;
  // How far from that element they may be, as a share of it: nothing for types
  // of up to 16 bits. Others may be 2^-126 away as well.
  double quantile_error = 0;

  // Of a matrix.
  std::optional<uint64_t> zero_rows, zero_columns;

  bool finite() const { return nans == 0 && infs == 0; }
  uint64_t numbers() const { return count - nans - infs; }
  Stats& operator+=(const Stats& other);
};

// Of the finite elements; NaN if there are none.
double mean(const Stats& stats);
double deviation(const Stats& stats);  // of the population
double root_mean_square(const Stats& stats);

double norm(const Stats& stats);  // the root of the sum of squares

}  // namespace ckpt::reshard
