// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/numeric.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ckpt/catalog.h"
#include "reshard/numbers/values.h"

namespace ckpt::reshard {

namespace {

constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr uint64_t kConverted = 2048;  // elements made doubles at a time

bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// `distance` is |a - b|, `size` is |b|.
void add_pair(double distance, double size, bool equal, double rtol,
              double atol, Comparison& total) {
  const uint64_t index = total.count++;
  if (equal) return;
  // NaN: only one of the two is a number, or an infinity met another.
  if (!(distance <= kLargest)) distance = total.squares = kInfinity;
  const double relative = distance / size;
  total.max_abs = std::max(total.max_abs, distance);
  total.max_rel =
      std::max(total.max_rel, std::isnan(relative) ? kInfinity : relative);
  const bool close = distance <= kLargest && distance <= atol + rtol * size;
  if (!close && total.mismatches++ == 0) total.first_mismatch = index;
}

// In independent sums, as above. Equal elements that are no numbers don't
// count.
void add_squares(const double* a, const double* b, uint64_t count,
                 Comparison& total) {
  constexpr size_t kLanes = 8;
  double squares[kLanes] = {}, of_a[kLanes] = {}, of_b[kLanes] = {};
  double products[kLanes] = {};
  for (uint64_t i = 0; i < count; ++i) {
    const bool finite =
        std::abs(a[i]) <= kLargest && std::abs(b[i]) <= kLargest;
    const double x = finite ? a[i] : 0, y = finite ? b[i] : 0;
    const size_t lane = i % kLanes;
    squares[lane] += (x - y) * (x - y);
    of_a[lane] += x * x;
    of_b[lane] += y * y;
    products[lane] += x * y;
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    total.squares += squares[lane];
    total.squares_a += of_a[lane];
    total.squares_b += of_b[lane];
    total.products += products[lane];
  }
}

void compare_real(const double* a, const double* b, uint64_t count, double rtol,
                  double atol, Comparison& total) {
  for (uint64_t i = 0; i < count; ++i)
    add_pair(std::abs(a[i] - b[i]), std::abs(b[i]), same(a[i], b[i]), rtol,
             atol, total);
  add_squares(a, b, count, total);
}

}  // namespace

Comparison& Comparison::operator+=(const Comparison& later) {
  max_abs = std::max(max_abs, later.max_abs);
  max_rel = std::max(max_rel, later.max_rel);
  if (mismatches == 0) first_mismatch = count + later.first_mismatch;
  count += later.count;
  mismatches += later.mismatches;
  squares += later.squares;
  squares_a += later.squares_a;
  squares_b += later.squares_b;
  products += later.products;
  return *this;
}

namespace {

bool is_wide(DType dtype) { return dtype == DType::i64 || dtype == DType::u64; }

// A double can't hold them all, so the difference is computed with integers.
template <class T>
void compare_wide(const std::byte* a, const std::byte* b, uint64_t count,
                  double rtol, double atol, Comparison& part) {
  for (uint64_t i = 0; i < count; ++i) {
    T x, y;
    std::memcpy(&x, a + i * sizeof x, sizeof x);
    std::memcpy(&y, b + i * sizeof y, sizeof y);
    const uint64_t apart = static_cast<uint64_t>(std::max(x, y)) -
                           static_cast<uint64_t>(std::min(x, y));
    const auto left = static_cast<double>(x), right = static_cast<double>(y);
    const auto distance = static_cast<double>(apart);
    add_pair(distance, std::abs(right), x == y, rtol, atol, part);
    part.squares += distance * distance;
    part.squares_a += left * left;
    part.squares_b += right * right;
    part.products += left * right;
  }
}

}  // namespace

void add_comparison(DType dtype_a, const std::byte* a, DType dtype_b,
                    const std::byte* b, uint64_t count, double rtol,
                    double atol, Comparison& comparison) {
  Comparison part;
  if (dtype_a == dtype_b && is_wide(dtype_a)) {
    if (dtype_a == DType::i64)
      compare_wide<int64_t>(a, b, count, rtol, atol, part);
    else
      compare_wide<uint64_t>(a, b, count, rtol, atol, part);
    comparison += part;
    return;
  }
  const uint64_t size_a = element_size(dtype_a), size_b = element_size(dtype_b);
  const uint32_t step_a = doubles_of(dtype_a), step_b = doubles_of(dtype_b);
  double x[2 * kConverted], y[2 * kConverted];
  for (uint64_t begin = 0; begin < count; begin += kConverted) {
    const uint64_t n = std::min(kConverted, count - begin);
    to_doubles(dtype_a, a + begin * size_a, n, x);
    to_doubles(dtype_b, b + begin * size_b, n, y);
    if (step_a == 1 && step_b == 1) {
      compare_real(x, y, n, rtol, atol, part);
      continue;
    }
    for (uint64_t i = 0; i < n; ++i) {
      const double re_a = x[i * step_a], re_b = y[i * step_b];
      const double im_a = step_a == 2 ? x[2 * i + 1] : 0;
      const double im_b = step_b == 2 ? y[2 * i + 1] : 0;
      add_pair(std::hypot(re_a - re_b, im_a - im_b), std::hypot(re_b, im_b),
               same(re_a, re_b) && same(im_a, im_b), rtol, atol, part);
      const double left[] = {re_a, im_a}, right[] = {re_b, im_b};
      add_squares(left, right, 2, part);
    }
  }
  comparison += part;
}

}  // namespace ckpt::reshard
