// SPDX-License-Identifier: Apache-2.0
// Loops written in a processor's own instructions, checked element by element
// against what they are meant to do.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/hash/crc32.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/numbers/turn.h"
#include "reshard/sources/decode_turned.h"
#include "reshard/sources/low_rank.h"
#include "tests/support/casts.h"

namespace ckpt::reshard {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937& random, size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

uint16_t u16_at(const Bytes& bytes, uint64_t at) {
  uint16_t value;
  std::memcpy(&value, bytes.data() + at, 2);
  return value;
}

uint32_t nibble(const Bytes& codes, uint64_t index) {
  return static_cast<uint32_t>(codes[index / 2]) >> index % 2 * 4 & 15;
}

// Codes of 32 rows, and where their elements go. Other bytes surround them.
struct Case {
  Case(std::mt19937& random, uint64_t columns, uint64_t code_rows,
       uint64_t row_bytes)
      : stride(row_bytes + random() % 9),
        by_column(2 * kTurnedRows + random() % 9),
        codes(random_bytes(random, code_rows * stride)),
        tables(random_bytes(random, columns * kTableBytes)),
        split_tables(tables),
        out(columns * by_column, std::byte{0xA5}),
        part{codes.data(), stride, columns, out.data(), by_column} {
    turned_kernel()->split(split_tables.data(), columns);
  }
  uint16_t element(uint64_t column, uint32_t code) const {
    return u16_at(tables, column * kTableBytes + 2 * code);
  }
  // False if an element isn't that of `want(row, column)`, or if something
  // beside the elements was written.
  template <class Want>
  bool holds(Want want) const {
    for (uint64_t c = 0; c < part.columns; ++c) {
      for (uint64_t r = 0; r < kTurnedRows; ++r)
        if (u16_at(out, c * by_column + 2 * r) != want(r, c)) return false;
      for (uint64_t i = 2 * kTurnedRows; i < by_column; ++i)
        if (out[c * by_column + i] != std::byte{0xA5}) return false;
    }
    return true;
  }

  uint64_t stride, by_column;
  Bytes codes, tables, split_tables, out;
  Turned part;
};

TEST_CASE("turned: GPTQ's words, eight rows each") {
  if (!turned_kernel()) return;
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const uint64_t columns = 4 * (1 + random() % 9);
    Case made(random, columns, 4, 4 * columns);
    turned_kernel()->gptq(made.part, made.split_tables.data());
    CHECK(made.holds([&](uint64_t r, uint64_t c) {
      const uint64_t word = r / 8 * made.stride + 4 * c;
      return made.element(c, nibble(made.codes, 2 * word + r % 8));
    }));
  }
}

TEST_CASE("turned: AWQ's words, eight columns each in its order") {
  if (!turned_kernel()) return;
  std::mt19937 random(2);
  constexpr uint64_t kAt[] = {0, 4, 1, 5, 2, 6, 3, 7};  // of column 0 to 7
  for (int round = 0; round < 50; ++round) {
    const uint64_t columns = 32 * (1 + random() % 3);
    Case made(random, columns, kTurnedRows, columns / 2);
    turned_kernel()->awq(made.part, made.split_tables.data());
    CHECK(made.holds([&](uint64_t r, uint64_t c) {
      const uint64_t word = r * made.stride + c / 8 * 4;
      return made.element(c, nibble(made.codes, 2 * word + kAt[c % 8]));
    }));
  }
}

TEST_CASE("turned: pairs of e2m1, times powers of two") {
  if (!turned_kernel()) return;
  std::mt19937 random(3);
  constexpr float kValues[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (int round = 0; round < 50; ++round) {
    const uint64_t columns = 32 * (1 + random() % 3);
    Case made(random, columns, kTurnedRows, columns / 2);
    std::vector<int16_t> powers(columns);  // of 32 rows, for 32 columns
    std::vector<int> exponents(columns);
    for (size_t i = 0; i < columns; ++i) {
      exponents[i] = static_cast<int>(random() % 200) - 100;
      powers[i] = static_cast<int16_t>(exponents[i] * 128);
    }
    turned_kernel()->e2m1(made.part, powers.data());
    CHECK(made.holds([&](uint64_t r, uint64_t c) {
      const uint32_t code = nibble(made.codes, 2 * r * made.stride + c);
      const float size =
          std::ldexp(kValues[code % 8], exponents[c / 32 * 32 + r]);
      return static_cast<uint16_t>(
          std::bit_cast<uint32_t>(code < 8 ? size : -size) >> 16);
    }));
  }
}

TEST_CASE("turn: rows to columns, of any size") {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    const uint64_t element = random() % 2 ? 2 : 4;
    const uint64_t rows = random() % 40, columns = random() % 40;
    // Mostly contiguous columns, the case that vectors handle.
    const bool together = random() % 4 != 0;
    const uint64_t by_row = element * (together ? 1 : 1 + random() % 3);
    const uint64_t by_column = by_row * rows + random() % 5;
    const Bytes in = random_bytes(random, rows * columns * element);
    Bytes out(columns * by_column, std::byte{0xA5});
    Bytes want = out;
    for (uint64_t r = 0; r < rows; ++r)
      for (uint64_t c = 0; c < columns; ++c)
        std::memcpy(want.data() + c * by_column + r * by_row,
                    in.data() + (r * columns + c) * element, element);
    turn(element, in.data(), rows, columns, out.data(), by_row, by_column);
    CHECK(out == want);
  }
}

TEST_CASE("low rank: one rounding for each term, in their order") {
  std::mt19937 random(5);
  const auto numbers = [&](size_t count) {
    std::vector<float> all(count);
    for (float& x : all)
      x = std::ldexp(static_cast<float>(static_cast<int32_t>(random())), -31);
    return all;
  };
  for (int round = 0; round < 40; ++round) {
    const uint64_t rows = 1 + random() % 9, rank = 1 + random() % 33;
    const uint64_t columns = 1 + random() % 200;
    const std::vector<float> left = numbers(rows * rank);
    const std::vector<float> right = numbers(rank * columns);
    std::vector<float> out(rows * columns), want(rows * columns);
    for (uint64_t r = 0; r < rows; ++r)
      for (uint64_t k = 0; k < rank; ++k)
        for (uint64_t c = 0; c < columns; ++c)
          want[r * columns + c] =
              std::fma(left[r * rank + k], right[k * columns + c],
                       want[r * columns + c]);
    multiply(left.data(), right.data(), rows, rank, columns, out.data());
    CHECK(std::memcmp(out.data(), want.data(), 4 * out.size()) == 0);
  }
}

// What PyTorch 2.13 made of each type's cast_values (rows) in each other type
// (columns), on x86-64: zlib's CRC-32. For machines without a torch module;
// where there is one, cast_test.cc names the element that differs.
TEST_CASE("cast: floats have the sums of torch's bits") {
  constexpr uint32_t kByTorch[][9] = {
      {0x00000000, 0x2C656128, 0x216EAABC, 0x328F8772, 0xB0FF7233, 0x7807BA84,
       0x5F923E27, 0xC99F84A3, 0xDFC9B0F3},
      {0x23AAFCC6, 0x00000000, 0xA1755995, 0x2A8A011B, 0x9D3B0097, 0x36C05A7C,
       0x9396B578, 0x18D1E655, 0xDF64D280},
      {0x4888FE60, 0x4E646BCA, 0x00000000, 0xB8F1205D, 0x5067A7AC, 0x2AD4353A,
       0x529EE546, 0x353D3364, 0x35F44FE2},
      {0xA774AFC3, 0x093B1249, 0x6DF63EDD, 0x00000000, 0xB4CA6F38, 0xAB11F833,
       0x1307319F, 0xF55FB73C, 0x0F916D60},
      {0x02449148, 0xB73B1FAD, 0x65335DB8, 0xB985D35D, 0x00000000, 0xAE23E4D1,
       0x08CCAF02, 0xC77C20C3, 0xA0C142AF},
      {0xB47CF4F3, 0xF971A97D, 0xAE6762C6, 0x9945D009, 0x38A78736, 0x00000000,
       0x2BB457A2, 0x33F03398, 0xBD6AFFD3},
      {0xDD24FA74, 0x1F61D32B, 0xBB282E53, 0x47CA15F9, 0x614FDF3F, 0x9CA179C2,
       0x00000000, 0x14E98AC2, 0x70CB1767},
      {0xFC293FD8, 0xA10EC073, 0x3BB9119B, 0xE586D32C, 0x60586204, 0x93C4CDA6,
       0xC14280E8, 0x00000000, 0x8ED42815},
      {0x7226946D, 0x7DFF6879, 0x911A6E80, 0x698D1D21, 0x35ADDE98, 0x61C57AF9,
       0x2054C7C7, 0xDCAD4E16, 0x00000000},
  };
  std::mt19937_64 random(20261122);
  for (size_t from = 0; from < test::kFloats.size(); ++from) {
    const Bytes in = test::cast_values(test::kFloats[from], random);
    const uint64_t count = in.size() / element_size(test::kFloats[from]);
    for (size_t to = 0; to < test::kFloats.size(); ++to) {
      if (from == to) continue;
      for (const CastKernel& kernel : usable_cast_kernels()) {
        CAPTURE(kernel.name);
        CAPTURE(name(test::kFloats[from]));
        CAPTURE(name(test::kFloats[to]));
        Bytes out(count * element_size(test::kFloats[to]));
        kernel.cast(test::kFloats[from], test::kFloats[to], in.data(),
                    out.data(), count);
        CHECK(crc32(0, out) == kByTorch[from][to]);
      }
    }
  }
}

}  // namespace
}  // namespace ckpt::reshard
