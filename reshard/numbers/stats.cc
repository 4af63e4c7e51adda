// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/stats.h"

#include <algorithm>
#include <cmath>

namespace ckpt::reshard {

Stats& Stats::operator+=(const Stats& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  sum += other.sum;
  sum_of_squares += other.sum_of_squares;
  count += other.count;
  nans += other.nans;
  infs += other.infs;
  zeros += other.zeros;
  for (size_t i = 0; i < kMagnitudes; ++i) magnitudes[i] += other.magnitudes[i];
  quantiles.reset();
  zero_rows.reset();
  zero_columns.reset();
  return *this;
}

double mean(const Stats& stats) {
  return stats.sum / static_cast<double>(stats.numbers());
}

double norm(const Stats& stats) { return std::sqrt(stats.sum_of_squares); }

double root_mean_square(const Stats& stats) {
  return std::sqrt(stats.sum_of_squares / static_cast<double>(stats.numbers()));
}

double deviation(const Stats& stats) {
  const double middle = mean(stats);
  const double variance =
      stats.sum_of_squares / static_cast<double>(stats.numbers()) -
      middle * middle;
  return std::sqrt(std::max(variance, 0.0));
}

}  // namespace ckpt::reshard
