// Through the torch module as the engine uses it. That torch's casts arrive
// bit by bit is checked in torch_module_test.py, against torch itself.
#include "reshard/cast.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "ckpt/error.h"
#include "lib/module.h"
#include "reshard/numeric.h"

namespace ckpt::reshard {
namespace {

template <class From, class To>
To cast_one(DType from, DType to, From value) {
  // One byte off, as payload in a file may be.
  std::byte in[sizeof(From) + 1];
  std::byte out[sizeof(To) + 1];
  std::memcpy(in + 1, &value, sizeof(From));
  Caster()(from, to, in + 1, out + 1, 1);
  To result;
  std::memcpy(&result, out + 1, sizeof(To));
  return result;
}

bool have_torch() {
  if (!find_module("torch").empty()) return true;
  MESSAGE("skipped: this build has no torch module");
  return false;
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

TEST_CASE("cast: to the nearest, halfway to even") {
  if (!have_torch()) return;
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
  };
  for (const Row& row : rows) {
    CAPTURE(row.f32);
    CHECK(cast_one<uint32_t, uint16_t>(DType::f32, DType::bf16, row.f32) ==
          row.bf16);
  }
  const auto nan =
      cast_one<uint32_t, uint16_t>(DType::f32, DType::bf16, 0x7F800001);
  CHECK((nan & 0x7FFF) > 0x7F80);
}

TEST_CASE("cast: what is refused, naming the tensor") {
  const Caster caster;
  CHECK_THROWS_WITH_AS(
      caster.check(DType::c64, DType::f32, "freqs"),
      "freqs: a cast from c64 to f32 would drop imaginary parts", Error);
  if (!have_torch()) return;
  CHECK_NOTHROW(caster.check(DType::f8_e8m0, DType::f32, "w"));
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
  if (!have_torch()) return;
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

TEST_CASE("numeric: parts add up") {
  if (!have_torch()) return;
  const float a[] = {1, -2, std::nanf(""), INFINITY, 5};
  const float b[] = {1, -2, std::nanf(""), INFINITY, 4};
  const auto bytes = [](const float* at) {
    return reinterpret_cast<const std::byte*>(at);
  };
  Stats stats;
  add_stats(DType::f32, bytes(a), 2, stats);
  add_stats(DType::f32, bytes(a + 2), 3, stats);
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
