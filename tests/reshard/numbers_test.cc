// SPDX-License-Identifier: Apache-2.0
// Rounding against values from the formats' definitions and, over all halves,
// against what the numbers mean; cast_test.cc has torch's bits.
#include "reshard/numbers/numbers.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <random>

namespace ckpt::numbers {
namespace {

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

// The value of a finite half, from its definition.
double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double fraction = (bits & 1023) / 1024.0;
  const double value = exponent ? std::ldexp(1 + fraction, exponent - 15)
                                : std::ldexp(fraction, -14);
  return bits & 0x8000 ? -value : value;
}
double bfloat(uint16_t bits) { return from_bits(uint32_t{bits} << 16); }

uint16_t to_bf16(uint32_t bits) {
  return static_cast<uint16_t>(float_to_bf16(bits, kNanFromWide));
}
uint16_t to_f16(uint32_t bits) {
  return static_cast<uint16_t>(float_to_f16(bits));
}

}  // namespace

TEST_CASE("numbers: known roundings") {
  struct Row {
    uint32_t exact;
    uint16_t bf16;
    uint16_t f16;
  };
  const Row rows[] = {
      {0x00000000, 0x0000, 0x0000},  // 0
      {0x80000000, 0x8000, 0x8000},  // -0
      {0x3f800000, 0x3f80, 0x3c00},  // 1
      {0x3f8ccccd, 0x3f8d, 0x3c66},  // 1.1
      {0x3f808000, 0x3f80, 0x3c04},  // a tie goes to the even one
      {0x3f818000, 0x3f82, 0x3c0c},  // a tie goes up, to the even one
      {0x3f808001, 0x3f81, 0x3c04},
      {0x7f7fffff, 0x7f80, 0x7c00},  // the largest: rounds to infinity
      {0x7f800000, 0x7f80, 0x7c00},
      {0xff800000, 0xff80, 0xfc00},
      {0x477fe000, 0x4780, 0x7bff},  // 65504, the largest half
      {0x477fefff, 0x4780, 0x7bff},
      {0x477ff000, 0x4780, 0x7c00},  // 65520
      {0x38800000, 0x3880, 0x0400},  // 2^-14, the smallest normal half
      {0x33800000, 0x3380, 0x0001},  // 2^-24, the smallest half
      {0x33000000, 0x3300, 0x0000},  // a tie with 0
      {0x33000001, 0x3300, 0x0001},
      {0x387fc000, 0x3880, 0x03ff},
      {0x387fe000, 0x3880, 0x0400},  // up into the normal ones
  };
  for (const Row& row : rows) {
    CAPTURE(row.exact);
    CHECK(to_bf16(row.exact) == row.bf16);
    CHECK(to_f16(row.exact) == row.f16);
  }
}

TEST_CASE("numbers: the nearest one, the even one of two") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2'000'000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const float value = from_bits(bits);
    if (!std::isfinite(value)) continue;
    const auto check = [&](uint16_t got, double (*meaning)(uint16_t),
                           uint16_t infinity) {
      const uint16_t size = got & 0x7fff;
      if (size >= infinity) return;  // rows above have the limits
      const double error = std::fabs(meaning(got) - value);
      for (const int step : {-1, 1}) {
        if ((size == 0 && step < 0) || size + step >= infinity) continue;
        const auto next = static_cast<uint16_t>(got + step);
        const double other = std::fabs(meaning(next) - value);
        const bool nearest = error < other || (error == other && !(got & 1));
        if (!nearest) CHECK(nearest);
      }
      if (value != 0 && meaning(got) != 0)
        if (std::signbit(value) != bool(got & 0x8000)) CHECK(false);
    };
    check(to_bf16(bits), bfloat, 0x7f80);
    check(to_f16(bits), half, 0x7c00);
  }
}

TEST_CASE("numbers: every half is itself") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    if ((h & 0x7c00) == 0x7c00) continue;
    const auto value = static_cast<float>(half(h));
    if (to_f16(std::bit_cast<uint32_t>(value)) != h) FAIL_CHECK(bits);
    if (f16_to_float(h) != std::bit_cast<uint32_t>(value)) FAIL_CHECK(bits);
  }
}

}  // namespace ckpt::numbers
