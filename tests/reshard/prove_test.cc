// SPDX-License-Identifier: Apache-2.0
#include "reshard/prove/prove.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "ckpt/error.h"
#include "reshard/numbers/numbers.h"

namespace ckpt::reshard {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// A tensor of a catalog whose bytes are in memory.
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
  tensor.pieces.push_back({Box::whole(shape), {}, {.file = file}});
  catalog.tensors.push_back(std::move(tensor));
}

}  // namespace

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
  rounded[1] = 0x7f80;  // infinity is not a NaN
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
    rounded[i] = static_cast<uint16_t>(0x3f80 + random() % 128);
    const auto below_half = static_cast<uint32_t>(random() % 0x8000);
    exact[i] = std::bit_cast<float>(uint32_t{rounded[i]} << 16 | below_half);
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

// What is stored beside its weight, rounded as trainers do.
TEST_CASE("prove: main weights beside their weights") {
  constexpr uint64_t kRows = 64, kColumns = 96, kCount = kRows * kColumns;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> exact(kCount);
  for (float& value : exact) value = normal(random);
  const auto nearest = [](float value) {
    return numbers::float_to_bf16(std::bit_cast<uint32_t>(value),
                                  numbers::kNanFromWide);
  };
  const auto bits_to = [&](float value, int bits) {  // behind the point
    const int exponent = std::ilogb(value);
    const float unit = std::ldexp(1.0f, exponent - bits);
    return nearest(std::nearbyint(value / unit) * unit);
  };
  struct Row {
    const char* what;
    std::function<uint32_t(uint64_t)> rounded;
    size_t problems;
  };
  const Row rows[] = {
      {"to nearest", [&](uint64_t i) { return nearest(exact[i]); }, 0},
      {"at random",
       [&](uint64_t i) {
         const auto bits = std::bit_cast<uint32_t>(exact[i]);
         return (bits + static_cast<uint32_t>(random() & 0xffff)) >> 16;
       },
       0},
      {"cut off",
       [&](uint64_t i) { return std::bit_cast<uint32_t>(exact[i]) >> 16; }, 0},
      {"from e4m3", [&](uint64_t i) { return bits_to(exact[i], 3); }, 0},
      {"from e5m2", [&](uint64_t i) { return bits_to(exact[i], 2); }, 0},
      {"from fp4", [&](uint64_t i) { return bits_to(exact[i], 1); }, 0},
      {"shifted", [&](uint64_t i) { return nearest(exact[(i + 64) % kCount]); },
       2},
      {"the last eighth gone",
       [&](uint64_t i) { return i < kCount / 8 * 7 ? nearest(exact[i]) : 0; },
       1},
      {"an exponent's bit",
       [&](uint64_t i) { return nearest(exact[i]) ^ (i == 99 ? 0x400 : 0); },
       1},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    std::vector<uint16_t> rounded(kCount);
    for (uint64_t i = 0; i < kCount; ++i)
      rounded[i] = static_cast<uint16_t>(row.rounded(i));
    Catalog catalog;
    add(catalog, "optimizer.state.param.w", DType::f32, {kRows, kColumns},
        exact);
    add(catalog, "w", DType::bf16, {kRows, kColumns}, rounded);
    CHECK(check_claims(catalog, {}).size() == row.problems);
    CHECK_NOTHROW(prove_claims(catalog, {}));
    CHECK(main_weights(catalog).tensors.size() == 2);
    catalog.tensors[0].name = "optimizer.state.exp_avg.w";
    CHECK(check_claims(catalog, {}).empty());
    CHECK(main_weights(catalog).tensors.empty());
  }
}

}  // namespace ckpt::reshard
