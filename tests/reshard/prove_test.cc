// Rounding is checked against values from the formats' definitions and, over
// all halves, against what the numbers mean; not against itself.
#include "reshard/prove.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "ckpt/error.h"

namespace ckpt::reshard {
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

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// A tensor of a catalog whose bytes lie in memory.
template <class T>
void add(Catalog& catalog, std::string name, DType dtype, Shape shape,
         const std::vector<T>& values) {
  const uint32_t file = static_cast<uint32_t>(catalog.files.size());
  const auto bytes = bytes_of(values);
  catalog.files.push_back({.path = "(memory)",
                           .size = bytes.size(),
                           .codec = Codec::kMemory,
                           .memory = bytes.data()});
  Tensor tensor{.name = std::move(name), .dtype = dtype, .shape = shape};
  tensor.pieces.push_back({Box::whole(shape), {}, {file, 0, {}}});
  catalog.tensors.push_back(std::move(tensor));
}

}  // namespace

TEST_CASE("prove: known roundings") {
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
      {0x3f808000, 0x3f80, 0x3c04},  // a tie: to the even one
      {0x3f818000, 0x3f82, 0x3c0c},  // a tie: to the even one, upwards
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
    CHECK(to_bf16(from_bits(row.exact)) == row.bf16);
    CHECK(to_f16(from_bits(row.exact)) == row.f16);
  }
}

TEST_CASE("prove: the nearest one, the even one of two") {
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
    check(to_bf16(value), bfloat, 0x7f80);
    check(to_f16(value), half, 0x7c00);
  }
}

TEST_CASE("prove: every half is itself") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    if ((h & 0x7c00) == 0x7c00) continue;
    if (to_f16(static_cast<float>(half(h))) != h) FAIL_CHECK(bits);
  }
}

TEST_CASE("prove: the first element that differs") {
  std::vector<float> exact(5000, 1.1f);
  std::vector<uint16_t> rounded(5000, 0x3f8d);
  CHECK(!first_unlike(bytes_of(exact), bytes_of(rounded), DType::bf16));
  rounded[4999] = 0x3f8c;
  CHECK(first_unlike(bytes_of(exact), bytes_of(rounded), DType::bf16) == 4999);
  rounded[3000] = 0x3f8e;
  CHECK(first_unlike(bytes_of(exact), bytes_of(rounded), DType::bf16) == 3000);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  exact = {nan, -nan, 1};
  rounded = {0x7fff, 0x7f81, 0x3f80};
  CHECK(!first_unlike(bytes_of(exact), bytes_of(rounded), DType::bf16));
  rounded[1] = 0x7f80;  // infinity is no NaN
  CHECK(first_unlike(bytes_of(exact), bytes_of(rounded), DType::bf16) == 1);
  rounded = {0x7e00, 0xfc01, 0x3c00};
  CHECK(!first_unlike(bytes_of(exact), bytes_of(rounded), DType::f16));
  CHECK(!first_unlike(bytes_of(exact), bytes_of(exact), DType::f32));
  const std::vector<float> zeros{0.0f, -0.0f};
  const std::vector<float> swapped{0.0f, 0.0f};
  CHECK(first_unlike(bytes_of(zeros), bytes_of(swapped), DType::f32) == 1);
}

TEST_CASE("prove: claims of a catalog") {
  constexpr uint64_t kRows = 3000, kColumns = 700;  // more than a tile
  std::vector<float> exact(kRows * kColumns);
  std::vector<uint16_t> rounded(exact.size());
  std::mt19937 random(1);
  for (size_t i = 0; i < exact.size(); ++i) {
    exact[i] = static_cast<float>(random()) / 4e9f;
    rounded[i] = to_bf16(exact[i]);
  }
  Catalog catalog;
  catalog.path = "here";
  add(catalog, "main.w", DType::f32, {kRows, kColumns}, exact);
  add(catalog, "w", DType::bf16, {kRows, kColumns}, rounded);
  catalog.claims.push_back({"main.w", "w", "it is inferred"});
  catalog.claims.push_back({"main.gone", "w", "left out"});
  RunOptions options;
  options.threads = 3;
  options.max_mem = uint64_t{16} << 20;
  CHECK(claim_bytes(catalog) == exact.size() * 6);
  CHECK(check_claims(catalog, options).empty());
  CHECK_NOTHROW(prove_claims(catalog, options));

  rounded[2999 * kColumns + 5] ^= 1;
  rounded[17 * kColumns + 699] ^= 1;
  const auto problems = check_claims(catalog, options);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].kind == "main_weight");
  CHECK(problems[0].tensor == "w");
  CHECK(problems[0].message.find("element [17, 699] of main.w") !=
        std::string::npos);
  try {
    prove_claims(catalog, options);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUnfaithful);
    CHECK(error.where().tensor == "w");
  }

  catalog.tensors[1].shape = {kColumns, kRows};
  CHECK(check_claims(catalog, options).size() == 1);
  catalog.tensors.pop_back();
  CHECK(check_claims(catalog, options).empty());
}

}  // namespace ckpt::reshard
