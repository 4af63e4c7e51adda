// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/exact_sum.h"

#include <bit>
#include <cmath>

namespace ckpt::reshard {
namespace {

constexpr uint64_t kOnes = ~uint64_t{0};

// a + b + carry, which becomes that of the sum.
uint64_t add_limb(uint64_t a, uint64_t b, uint64_t& carry) {
  const unsigned __int128 sum = static_cast<unsigned __int128>(a) + b + carry;
  carry = static_cast<uint64_t>(sum >> 64);
  return static_cast<uint64_t>(sum);
}

}  // namespace

void ExactSum::add(__int128 mantissa, int exponent) {
  const auto place = static_cast<size_t>(exponent - kLeast);
  const size_t first = place / 64, shift = place % 64;
  const auto low = static_cast<uint64_t>(mantissa);
  const auto high = static_cast<uint64_t>(mantissa >> 64);
  const uint64_t sign = mantissa < 0 ? kOnes : 0;
  const auto joined = [&](uint64_t lower, uint64_t upper) {
    return shift == 0 ? upper : (upper << shift) | (lower >> (64 - shift));
  };
  const uint64_t parts[] = {joined(0, low), joined(low, high),
                            joined(high, sign)};
  uint64_t carry = 0;
  for (size_t i = first; i < limbs_.size(); ++i) {
    const bool inside = i - first < 3;
    // What is left would change nothing.
    if (!inside && carry == (sign & 1)) return;
    limbs_[i] = add_limb(limbs_[i], inside ? parts[i - first] : sign, carry);
  }
}

void ExactSum::add(double value, uint64_t times) {
  constexpr int kBits = 52, kBias = 1023;
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto exponent = static_cast<int>((bits << 1) >> (kBits + 1));
  const uint64_t fraction = bits & ((uint64_t{1} << kBits) - 1);
  const uint64_t mantissa =
      fraction | (exponent == 0 ? 0 : uint64_t{1} << kBits);
  const __int128 product = static_cast<__int128>(mantissa) * times;
  const int least = exponent == 0 ? 1 : exponent;
  add(bits >> 63 ? -product : product, least - kBias - kBits);
}

ExactSum& ExactSum::operator+=(const ExactSum& other) {
  uint64_t carry = 0;
  for (size_t i = 0; i < limbs_.size(); ++i)
    limbs_[i] = add_limb(limbs_[i], other.limbs_[i], carry);
  return *this;
}

double ExactSum::value() const {
  const bool negative = limbs_.back() >> 63;
  auto limbs = limbs_;
  if (negative) {
    uint64_t carry = 1;
    for (uint64_t& limb : limbs) limb = add_limb(~limb, 0, carry);
  }
  size_t top = limbs.size() - 1;
  while (top > 1 && limbs[top] == 0) --top;
  unsigned __int128 bits =
      static_cast<unsigned __int128>(limbs[top]) << 64 | limbs[top - 1];
  // More than 64 bits of it are there, so that one more says on which side of
  // the middle between two doubles the sum is.
  for (size_t i = 0; i + 1 < top; ++i) bits |= limbs[i] != 0;
  const double size = std::ldexp(static_cast<double>(bits),
                                 kLeast + 64 * static_cast<int>(top - 1));
  return negative ? -size : size;
}

}  // namespace ckpt::reshard
