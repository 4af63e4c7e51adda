// SPDX-License-Identifier: Apache-2.0
// Casts as the engine uses them: our own against the torch module's, bit by
// bit. torch_module_test.py compares that one with torch itself.
#include "reshard/numbers/cast.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/numbers/exact_sum.h"
#include "reshard/numbers/numeric.h"
#include "reshard/numbers/tally.h"
#include "tests/support/casts.h"

namespace ckpt::reshard {
namespace {

template <class From, class To>
To cast_one(DType from, DType to, From value) {
  // One byte off, as payload in a file can be.
  std::byte in[sizeof(From) + 1];
  std::byte out[sizeof(To) + 1];
  std::memcpy(in + 1, &value, sizeof(From));
  Caster()(from, to, in + 1, out + 1, 1);
  To result;
  std::memcpy(&result, out + 1, sizeof(To));
  return result;
}

using Bytes = std::vector<std::byte>;

// Casts from `in_shift` bytes into one buffer to `out_shift` bytes into
// another. Fails if anything besides the target is written.
Bytes cast_shifted(const CastKernel& kernel, DType from, DType to,
                   std::span<const std::byte> in, size_t in_shift,
                   size_t out_shift) {
  constexpr std::byte kUntouched{0xA5};
  constexpr size_t kMargin = 64;
  const uint64_t count = in.size() / element_size(from);
  const size_t size = count * element_size(to);
  Bytes source(in_shift + in.size());
  std::ranges::copy(in, source.begin() + in_shift);
  Bytes target(out_shift + size + kMargin, kUntouched);
  kernel.cast(from, to, source.data() + in_shift, target.data() + out_shift,
              count);
  const auto begin = target.begin() + out_shift;
  const auto untouched = [](std::byte b) { return b == kUntouched; };
  CHECK(std::all_of(target.begin(), begin, untouched));
  CHECK(std::all_of(begin + size, target.end(), untouched));
  return {begin, begin + size};
}

// Calls visit with each pair of float types, all of its values and torch's
// casts of them.
template <class Visit>
void for_pairs(Visit visit) {
  std::mt19937_64 random(20261122);
  for (const DType from : test::kFloats) {
    const Bytes in = test::cast_values(from, random);
    for (const DType to : test::kFloats) {
      if (from == to) continue;
      CAPTURE(name(from));
      CAPTURE(name(to));
      visit(from, to, in, test::cast_by_torch(from, to, in));
    }
  }
}

}  // namespace

TEST_CASE("cast: a copy needs no module") {
  const std::byte in[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::byte out[3] = {};
  const Caster caster;
  caster.check(DType::qu8, DType::qu8, "q");
  caster(DType::f6_e2m3, DType::f6_e2m3, in, out, 4);  // four in three bytes
  CHECK(std::memcmp(in, out, 3) == 0);
}

TEST_CASE("cast: floats have torch's bits with every instruction set") {
  if (!test::have_torch()) return;
  for_pairs([](DType from, DType to, const Bytes& in, const Bytes& expected) {
    for (const CastKernel& kernel : usable_cast_kernels()) {
      CAPTURE(kernel.name);
      const Bytes found = cast_shifted(kernel, from, to, in, 0, 0);
      const auto differs = std::ranges::mismatch(found, expected);
      const auto at = differs.in1 - found.begin();
      CAPTURE(at);
      CHECK(differs.in1 == found.end());
    }
  });
}

TEST_CASE("cast: from any byte to any byte, of any length") {
  if (!test::have_torch()) return;
  for_pairs([](DType from, DType to, const Bytes& in, const Bytes& expected) {
    const uint64_t in_size = element_size(from), out_size = element_size(to);
    const uint64_t count = in.size() / in_size;
    std::mt19937_64 random(1);
    for (const CastKernel& kernel : usable_cast_kernels()) {
      CAPTURE(kernel.name);
      for (size_t shifts = 0; shifts < 64; ++shifts)
        for (uint64_t length = 0; length < 68; ++length) {
          const uint64_t first = random() % (count - length);
          const auto part =
              std::span(in).subspan(first * in_size, length * in_size);
          const auto wanted =
              std::span(expected).subspan(first * out_size, length * out_size);
          const Bytes found =
              cast_shifted(kernel, from, to, part, shifts % 8, shifts / 8);
          if (!std::ranges::equal(found, wanted)) FAIL_CHECK(shifts, length);
        }
    }
  });
}

TEST_CASE("cast: to the nearest, halfway to even") {
  struct Row {
    uint32_t f32;
    uint16_t bf16;
  };
  const Row rows[] = {
      {0x3F800000, 0x3F80}, {0x3F808000, 0x3F80},  // halfway, down to even
      {0x3F808001, 0x3F81}, {0x3F818000, 0x3F82},  // halfway, up to even
      {0x7F7FFFFF, 0x7F80},                        // overflows to infinity
      {0xFF800000, 0xFF80}, {0x00000001, 0x0000},
      {0x80000000, 0x8000}, {0x00008001, 0x0001},  // denormal
      {0x7F800001, 0xFFFF},                        // the NaN of torch
  };
  for (const Row& row : rows) {
    CAPTURE(row.f32);
    CHECK(cast_one<uint32_t, uint16_t>(DType::f32, DType::bf16, row.f32) ==
          row.bf16);
  }
}

TEST_CASE("cast: what is refused, naming the tensor") {
  const Caster caster;
  CHECK_THROWS_WITH_AS(
      caster.check(DType::c64, DType::f32, "freqs"),
      "freqs: a cast from c64 to f32 would drop imaginary parts", Error);
  CHECK_NOTHROW(caster.check(DType::f8_e8m0, DType::f32, "w"));
  if (!test::have_torch()) return;
  CHECK_NOTHROW(caster.check(DType::u64, DType::bool_, "w"));
  for (const DType dtype : {DType::qi8, DType::bits8, DType::f4x2, DType::f4}) {
    try {
      caster.check(dtype, DType::f32, "w");
      FAIL("accepted ", std::string(name(dtype)));
    } catch (const Error& error) {
      const std::string what = error.what();
      CAPTURE(what);
      CHECK(error.code() == ExitCode::kUnfaithful);
      CHECK(what.starts_with("w: torch 2."));
      CHECK(what.find(std::string(name(dtype))) != what.npos);
    }
  }
}

TEST_CASE("cast: from many threads at once") {
  std::vector<float> values(100'000);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(static_cast<float>(i) - 5e4f, -10);
  std::vector<std::vector<double>> results(8);
  std::vector<std::thread> threads;
  for (auto& result : results)
    threads.emplace_back([&] {
      result.resize(values.size());
      Caster()(DType::f32, DType::f64,
               reinterpret_cast<const std::byte*>(values.data()),
               reinterpret_cast<std::byte*>(result.data()), values.size());
    });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results)
    CHECK(std::equal(result.begin(), result.end(), values.begin()));
}

TEST_CASE("exact sum: rounded once, whatever the order") {
  const double terms[] = {1e308,   1,     -1e308, 5e-324,
                          -1e-300, 1e308, -1e308, -5e-324};
  ExactSum forward, backward, joined;
  for (const double term : terms) forward.add(term);
  for (size_t i = std::size(terms); i-- > 0;) backward.add(terms[i]);
  CHECK(forward.value() == 1);  // 1 - 1e-300, to the nearest
  CHECK(backward.value() == 1);
  joined.add(-3.0, uint64_t{1} << 40);
  joined += forward;
  CHECK(joined.value() == 1 - 3 * std::ldexp(1.0, 40));
  ExactSum half;  // between two doubles, and a bit more than halfway
  half.add(std::ldexp(1.0, 53));
  half.add(1);
  CHECK(half.value() == std::ldexp(1.0, 53));
  half.add(5e-324);
  CHECK(half.value() == std::ldexp(1.0, 53) + 2);
}

TEST_CASE("numeric: parts add up") {
  const float a[] = {1, -2, std::nanf(""), INFINITY, 5};
  const float b[] = {1, -2, std::nanf(""), INFINITY, 4};
  const auto bytes = [](const float* at) {
    return reinterpret_cast<const std::byte*>(at);
  };
  TensorStats all(DType::f32, {5});
  Tally part;
  part.begin(DType::f32, {5});
  part.add(2, bytes(a + 2), 3);
  all.add(part);
  part.begin(DType::f32, {5});
  part.add(0, bytes(a), 2);
  all.add(part);
  CHECK(all.counted() == 5);
  const Stats stats = all.finish();
  CHECK(stats.min == -2);
  CHECK(stats.max == 5);
  CHECK(stats.sum == 4);
  CHECK(stats.sum_of_squares == 30);
  CHECK(stats.count == 5);
  CHECK(stats.nans == 1);
  CHECK(stats.infs == 1);
  CHECK(!stats.finite());

  Comparison comparison;
  add_comparison(DType::f32, bytes(a), DType::f32, bytes(b), 2, 0, 0,
                 comparison);
  add_comparison(DType::f32, bytes(a + 2), DType::f32, bytes(b + 2), 3, 0, 0.5,
                 comparison);
  CHECK(comparison.max_abs == 1);
  CHECK(comparison.max_rel == 0.25);
  CHECK(comparison.count == 5);
  CHECK(comparison.mismatches == 1);
  CHECK(comparison.first_mismatch == 4);
}

}  // namespace ckpt::reshard
