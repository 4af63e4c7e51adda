// SPDX-License-Identifier: Apache-2.0
#include "reshard/prove/rounding.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reshard/numbers/numbers.h"
#include "reshard/prove/prove.h"

namespace ckpt::reshard {
namespace {

// e5m2 keeps two bits behind the point; its scale may be off by another.
constexpr double kCoarse = 0.25;
// Below the least code of e4m3, against the largest value under one scale.
constexpr double kLeastCode = 1.0 / 4096;

float exact_at(std::span<const std::byte> bytes, uint64_t index) {
  float value;
  std::memcpy(&value, bytes.data() + index * sizeof(value), sizeof(value));
  return value;
}

float rounded_at(std::span<const std::byte> bytes, DType dtype,
                 uint64_t index) {
  if (dtype == DType::f32) return exact_at(bytes, index);
  uint16_t bits;
  std::memcpy(&bits, bytes.data() + index * sizeof(bits), sizeof(bits));
  const uint32_t wide = dtype == DType::f16 ? numbers::f16_to_float(bits)
                                            : numbers::bf16_to_float(bits);
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

double largest_of(std::span<const std::byte> exact) {
  double largest = 0;
  for (uint64_t i = 0; i < exact.size() / sizeof(float); ++i) {
    const double value = std::abs(double{exact_at(exact, i)});
    if (std::isfinite(value)) largest = std::max(largest, value);
  }
  return largest;
}

}  // namespace

void Rounding::add(const Rounding& other) {
  count += other.count;
  unlike += other.unlike;
  far += other.far;
  distance += other.distance;
  weight += other.weight;
}

bool Rounding::holds() const {
  if (far == 0) return true;
  // Few are bits that flipped; all of them, and near, are 4-bit codes.
  return unlike >= count / 4 && distance <= weight * kCoarse;
}

Rounding measure(std::span<const std::byte> exact,
                 std::span<const std::byte> rounded, DType dtype) {
  Rounding found;
  found.count = exact.size() / sizeof(float);
  const std::optional<uint64_t> first = first_unlike(exact, rounded, dtype);
  if (!first) return found;
  const double least = largest_of(exact) * kLeastCode;
  const uint64_t width = rounded.size() / found.count;
  for (uint64_t i = *first; i < found.count; ++i) {
    if (!first_unlike(exact.subspan(i * sizeof(float), sizeof(float)),
                      rounded.subspan(i * width, width), dtype))
      continue;
    const double main = exact_at(exact, i);
    const double weight = rounded_at(rounded, dtype, i);
    const double distance = std::abs(weight - main);
    ++found.unlike;
    found.distance += distance;
    found.weight += std::abs(main);
    // So written, what is no number is far.
    if (distance <= std::abs(main) * kCoarse + least) continue;
    ++found.far;
    if (!found.first_far) found.first_far = i;
  }
  return found;
}

}  // namespace ckpt::reshard
