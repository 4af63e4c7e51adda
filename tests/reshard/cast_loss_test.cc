// SPDX-License-Identifier: Apache-2.0
// What casts lose, against the casts themselves, element by element.
#include "reshard/numbers/cast_loss.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/numbers/cast_kernel.h"

namespace ckpt::reshard {
namespace {

constexpr DType kTargets[] = {DType::f16, DType::bf16, DType::f8_e4m3,
                              DType::f8_e5m2, DType::f8_e4m3fnuz};

double value_of(DType dtype, const std::byte* bytes) {
  double value;
  std::byte out[8];
  if (dtype == DType::f64)
    std::memcpy(out, bytes, sizeof out);
  else
    best_cast_kernel().cast(dtype, DType::f64, bytes, out, 1);
  std::memcpy(&value, out, sizeof value);
  return value;
}

// All codes of 16 bits, as the upper half of wider ones.
std::vector<std::byte> codes(DType from) {
  const uint64_t size = element_size(from);
  std::vector<std::byte> bytes(65536 * size);
  for (uint64_t code = 0; code < 65536; ++code) {
    const uint64_t bits = code << (8 * size - 16);
    std::memcpy(bytes.data() + code * size, &bits, size);
  }
  return bytes;
}

CastLoss expected(DType from, DType to, const std::vector<std::byte>& in,
                  const std::vector<std::byte>& out) {
  CastLoss loss;
  const uint64_t count = in.size() / element_size(from);
  for (uint64_t i = 0; i < count; ++i) {
    const double before = value_of(from, in.data() + i * element_size(from));
    const double after = value_of(to, out.data() + i * element_size(to));
    if (std::isnan(before)) continue;
    // Halfway from e4m3's largest to the next step is 464.
    const bool large =
        to == DType::f8_e4m3 ? std::fabs(before) > 464 : !std::isfinite(after);
    if (large && (std::isfinite(before) || !has_infinity(to))) {
      ++loss.overflowed;
      loss.largest = std::max(loss.largest, std::fabs(before));
    }
    if (before != 0 && after == 0) ++loss.zeroed;
  }
  return loss;
}

}  // namespace

TEST_CASE("a counter finds what its cast loses") {
  for (const DType from : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const std::vector<std::byte> in = codes(from);
    for (const DType to : kTargets) {
      if (from == to) continue;
      CAPTURE(name(from));
      CAPTURE(name(to));
      const uint64_t count = in.size() / element_size(from);
      std::vector<std::byte> out(count * element_size(to));
      best_cast_kernel().cast(from, to, in.data(), out.data(), count);
      const CastLoss want = expected(from, to, in, out);
      const CastLoss got = LossCounter(from, to).count(in);
      CHECK(got.overflowed == want.overflowed);
      CHECK(got.zeroed == want.zeroed);
      CHECK(got.largest == want.largest);
    }
  }
}

TEST_CASE("parts of any size and place are counted alike") {
  const std::vector<std::byte> in = codes(DType::f32);
  const LossCounter counter(DType::f32, DType::f16);
  const CastLoss whole = counter.count(in);
  CastLoss sum;
  std::vector<std::byte> shifted(in.size() + 1);
  std::memcpy(shifted.data() + 1, in.data(), in.size());
  for (uint64_t at = 0, step = 4; at < in.size(); at += step, step += 4)
    sum += counter.count(
        {shifted.data() + 1 + at, std::min(step, in.size() - at)});
  CHECK(sum.overflowed == whole.overflowed);
  CHECK(sum.zeroed == whole.zeroed);
  CHECK(sum.largest == whole.largest);
}

TEST_CASE("saturated values are the largest, and infinities stay") {
  const float in[] = {1, 70000, -70000, INFINITY, NAN, 65519.9f, -1e38f};
  uint16_t out[7];
  const auto* bytes = reinterpret_cast<const std::byte*>(in);
  auto* target = reinterpret_cast<std::byte*>(out);
  best_cast_kernel().cast(DType::f32, DType::f16, bytes, target, 7);
  LossCounter(DType::f32, DType::f16).saturate(bytes, target, 7);
  const uint16_t want[] = {0x3C00, 0x7BFF, 0xFBFF, 0x7C00,
                           0x7E00, 0x7BFF, 0xFBFF};
  for (int i = 0; i < 7; ++i) CHECK(out[i] == want[i]);
}

TEST_CASE("a cast to a wider type loses nothing") {
  CHECK_FALSE(LossCounter(DType::f16, DType::f32).counts());
  CHECK_FALSE(LossCounter(DType::bf16, DType::f32).counts());
  CHECK_FALSE(LossCounter(DType::f32, DType::f64).counts());
  CHECK_FALSE(LossCounter(DType::i32, DType::f32).counts());
}

}  // namespace ckpt::reshard
