// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources/decode.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ckpt/error.h"
#include "reshard/sources/decode_kernel.h"
#include "reshard/sources/decode_turned.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {
namespace {

std::vector<std::byte> some_bytes(size_t count) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<uint32_t> bits_of(const std::vector<float>& numbers) {
  std::vector<uint32_t> bits(numbers.size());
  std::memcpy(bits.data(), numbers.data(), 4 * bits.size());
  return bits;
}

// A matrix in memory: one-byte codes [rows, columns], scales per block.
struct Matrix {
  Matrix(uint64_t row_count, uint64_t column_count, uint64_t block_rows,
         uint64_t block_columns, DType codes_dtype)
      : rows(row_count), columns(column_count) {
    codes = some_bytes(rows * columns);
    made.rows = rows;
    made.columns = columns;
    made.block_rows = block_rows;
    made.block_columns = block_columns;
    made.name = "w";
    const uint64_t down = (rows + block_rows - 1) / block_rows;
    const uint64_t along = (columns + block_columns - 1) / block_columns;
    for (uint64_t i = 0; i < down * along; ++i)
      scales.push_back(0.25F + static_cast<float>(i % 7));
    auto files = std::make_shared<std::vector<File>>();
    files->push_back({.path = "codes",
                      .size = codes.size(),
                      .codec = Codec::kMemory,
                      .memory = codes.data()});
    files->push_back(
        {.path = "scales",
         .size = 4 * scales.size(),
         .codec = Codec::kMemory,
         .memory = reinterpret_cast<const std::byte*>(scales.data())});
    place(made.codes, codes_dtype, {1, rows, columns}, 0, 1);
    place(made.scales, DType::f32, {1, down, along}, 1, 4);
    made.files = std::move(files);
  }
  static void place(Tensor& tensor, DType dtype, Shape shape, uint32_t file,
                    uint64_t element) {
    tensor.name = file ? "w_scale" : "w";
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.pieces = {{.box = Box::whole(shape),
                      .flat = {},
                      .extent = {.offset = 0,
                                 .strides = {shape[1] * shape[2] * element,
                                             shape[2] * element, element},
                                 .file = file}}};
  }
  float at(uint64_t row, uint64_t column) const {
    const uint64_t along =
        (columns + made.block_columns - 1) / made.block_columns;
    const float code =
        static_cast<float>(static_cast<int8_t>(codes[row * columns + column]));
    return code *
           scales[row / made.block_rows * along + column / made.block_columns];
  }

  uint64_t rows, columns;
  std::vector<std::byte> codes;
  std::vector<float> scales;
  Decoding made;
};

TEST_CASE("made: each instruction set gives the same bits") {
  const uint64_t count = 1003;
  const std::vector<std::byte> in = some_bytes(4 * count);
  const auto* words = reinterpret_cast<const uint32_t*>(in.data());
  const auto all = [&](const DecodeKernel& kernel) {
    std::vector<float> out;
    const auto add = [&](auto fill, uint64_t room) {
      std::vector<float> line(room);
      fill(line.data());
      out.insert(out.end(), line.begin(), line.end());
    };
    add([&](float* to) { kernel.from_i8(in.data(), to, count); }, count);
    add([&](float* to) { kernel.from_u8(in.data(), to, count); }, count);
    add([&](float* to) { kernel.from_e2m1(in.data(), to, count); }, count);
    add([&](float* to) { kernel.from_words(words, 12, 15, to, count); }, count);
    add([&](float* to) { kernel.from_awq(words, to, count); }, 8 * count);
    std::vector<float> zeros(out.begin(), out.begin() + count);
    std::vector<float> scales(out.begin() + count, out.begin() + 2 * count);
    std::vector<float> x(out.begin(), out.begin() + count);
    kernel.scale_each(x.data(), zeros.data(), scales.data(), count);
    out.insert(out.end(), x.begin(), x.end());
    kernel.scale(scales.data(), 3, 0.1F, count);
    out.insert(out.end(), scales.begin(), scales.end());
    out.push_back(std::bit_cast<float>(kernel.largest(out.data(), out.size())));
    out.push_back(std::bit_cast<float>(kernel.largest_bf16(in.data(), count)));
    std::vector<std::byte> small(2 * count), codes(count);  // below 4
    for (uint64_t i = 0; i < 2 * count; ++i)
      small[i] = in[i] & std::byte(i % 2 ? 0xBF : 0xFF);
    kernel.bf16_to_e4m3(small.data(), 100, codes.data(), count);
    for (const std::byte code : codes) out.push_back(static_cast<float>(code));
    for (const float scale : {1.0F, 0.37F, 3e-5F}) {  // all of bf16 that fit
      std::vector<uint16_t> numbers;
      for (uint32_t bits = 0; bits <= 0xFFFF; ++bits)
        if (std::abs(std::bit_cast<float>(bits << 16)) * scale <= 448)
          numbers.push_back(static_cast<uint16_t>(bits));
      codes.resize(numbers.size());
      kernel.bf16_to_e4m3(reinterpret_cast<const std::byte*>(numbers.data()),
                          scale, codes.data(), codes.size());
      for (const std::byte code : codes)
        out.push_back(static_cast<float>(code));
    }
    return bits_of(out);
  };
  const auto kernels = usable_decode_kernels();
  const std::vector<uint32_t> want = all(kernels.front());
  for (const DecodeKernel& kernel : kernels) {
    CAPTURE(kernel.name);
    CHECK(all(kernel) == want);
  }
}

TEST_CASE("made: e2m1 and words are what their formats say") {
  constexpr float kE2m1[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (const DecodeKernel& kernel : usable_decode_kernels()) {
    for (uint32_t code = 0; code < 16; ++code) {
      const auto byte = static_cast<std::byte>(code | (15 - code) << 4);
      float pair[2];
      kernel.from_e2m1(&byte, pair, 2);
      CHECK(std::abs(pair[0]) == kE2m1[code % 8]);
      CHECK(std::signbit(pair[0]) == (code >= 8));
      CHECK(std::abs(pair[1]) == kE2m1[(15 - code) % 8]);
    }
    const uint32_t word = 0x76543210;
    float codes[8];
    kernel.from_awq(&word, codes, 1);
    constexpr float kOrder[] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (int i = 0; i < 8; ++i) CHECK(codes[i] == kOrder[i]);
    kernel.from_words(&word, 20, 15, codes, 1);
    CHECK(codes[0] == 5);
    const float numbers[] = {1, -7, 3};
    CHECK(std::bit_cast<float>(kernel.largest(numbers, 3)) == 7);
  }
}

TEST_CASE("made: any range of a matrix, of blocks that don't divide it") {
  for (const bool transposed : {false, true}) {
    CAPTURE(transposed);
    Matrix matrix(37, 53, 8, 20, DType::i8);
    matrix.made.transposed = transposed;
    const uint64_t width = transposed ? 37 : 53;
    HandleCache handles;
    DecodeReader reader(handles);
    for (const uint64_t first : {0, 1, 36, 52, 53, 700, 1900}) {
      for (const uint64_t count : {1, 5, 53, 61}) {
        std::vector<float> got(count);
        reader.read(matrix.made, 4 * first,
                    std::as_writable_bytes(std::span(got)));
        for (uint64_t i = 0; i < count; ++i) {
          const uint64_t row = (first + i) / width,
                         column = (first + i) % width;
          CHECK(got[i] ==
                (transposed ? matrix.at(column, row) : matrix.at(row, column)));
        }
      }
    }
    // Not even whole elements.
    std::vector<std::byte> part(5);
    reader.read(matrix.made, 4 * 60 + 3, part);
    std::vector<float> whole(3);
    reader.read(matrix.made, 4 * 60, std::as_writable_bytes(std::span(whole)));
    CHECK(std::memcmp(part.data(),
                      reinterpret_cast<const char*>(whole.data()) + 3, 5) == 0);
  }
}

// Half bytes that run across, with scales, zeros and two groups of 64 rows.
struct Across {
  explicit Across(Coding coding) {
    made.coding = coding;
    made.dtype = DType::bf16;
    made.rows = 128;
    made.columns = 96;
    made.transposed = true;
    made.bits = 4;
    made.name = "w";
    const bool e2m1 = coding == Coding::kE2m1;
    codes = some_bytes(128 * 96 / 2);
    made.block_rows = e2m1 ? 1 : 64;
    made.block_columns = e2m1 ? 32 : 1;
    zeros = some_bytes(2 * 96 / 2);
    const uint64_t count = e2m1 ? 128 * 3 : 2 * 96;
    for (uint64_t i = 0; i < count; ++i) {
      powers.push_back(static_cast<std::byte>(100 + i % 50));
      scales.push_back(0.25F + static_cast<float>(i % 7) / 3);
    }
    auto files = std::make_shared<std::vector<File>>();
    add(*files, codes.data(), codes.size());
    add(*files, zeros.data(), zeros.size());
    if (e2m1)
      add(*files, powers.data(), count);
    else
      add(*files, reinterpret_cast<const std::byte*>(scales.data()), 4 * count);
    if (e2m1) {
      Matrix::place(made.codes, DType::u8, {1, 128, 48}, 0, 1);
      Matrix::place(made.scales, DType::u8, {1, 128, 3}, 2, 1);
    } else {
      const bool gptq = coding == Coding::kGptq;
      Matrix::place(made.codes, DType::i32,
                    gptq ? Shape{1, 16, 96} : Shape{1, 128, 12}, 0, 4);
      Matrix::place(made.zeros, DType::i32, {1, 2, 12}, 1, 4);
      Matrix::place(made.scales, DType::f32, {1, 2, 96}, 2, 4);
    }
    made.files = std::move(files);
  }
  static void add(std::vector<File>& files, const std::byte* at,
                  uint64_t size) {
    files.push_back({.path = std::to_string(files.size()),
                     .size = size,
                     .codec = Codec::kMemory,
                     .memory = at});
  }
  // Reads elements [first, first + count) with a reader of their own.
  std::vector<uint16_t> read(uint64_t first, uint64_t count) const {
    HandleCache handles;
    DecodeReader reader(handles);
    std::vector<uint16_t> got(count);
    reader.read(made, 2 * first, std::as_writable_bytes(std::span(got)));
    return got;
  }

  std::vector<std::byte> codes, zeros, powers;
  std::vector<float> scales;
  Decoding made;
};

// Ranges of a few rows are decoded line by line, without lookups.
TEST_CASE("made: codes that are looked up are those of the lines") {
  for (const Coding coding : {Coding::kE2m1, Coding::kGptq, Coding::kAwq}) {
    CAPTURE(static_cast<int>(coding));
    Across across(coding);
    const std::vector<uint16_t> whole = across.read(0, 128 * 96);
    for (uint64_t column = 0; column < 96; ++column)
      for (uint64_t row = 0; row < 128; row += 16) {
        const auto part = across.read(column * 128 + row, 16);
        CHECK(std::equal(part.begin(), part.end(),
                         whole.begin() + column * 128 + row));
      }
    // A scale that doesn't fit an exponent of bf16 is not looked up.
    across.powers[5] = std::byte{1};
    const auto other = across.read(0, 128 * 96);
    if (coding == Coding::kE2m1) {
      const auto part = across.read(64 * 128, 16);
      CHECK(std::equal(part.begin(), part.end(), other.begin() + 64 * 128));
    }
  }
}

// 32 rows, 64 columns: what each instruction set makes of codes, in the places
// that the formats give them.
TEST_CASE("made: each instruction set looks the same codes up") {
  constexpr uint64_t kColumns = 64, kRowBytes = kColumns / 2;
  const auto codes = some_bytes(kTurnedRows * kRowBytes);
  const auto nibble = [&](uint64_t byte, uint64_t half) {
    return static_cast<uint32_t>(codes[byte] >> (4 * half)) & 15;
  };
  std::vector<uint16_t> elements(16 * kColumns);
  for (size_t i = 0; i < elements.size(); ++i)
    elements[i] = static_cast<uint16_t>(i * 40503);
  constexpr uint32_t kE2m1[] = {0,      0x3F00, 0x3F80, 0x3FC0,
                                0x4000, 0x4040, 0x4080, 0x40C0};
  constexpr uint64_t kAwqPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};
  std::vector<int16_t> powers(kTurnedRows * kColumns / 32);
  for (size_t i = 0; i < powers.size(); ++i)
    powers[i] = static_cast<int16_t>((static_cast<int>(i % 40) - 20) * 128);
  std::vector<uint16_t> gptq, awq, e2m1;
  for (uint64_t c = 0; c < kColumns; ++c)
    for (uint64_t r = 0; r < kTurnedRows; ++r) {
      const uint64_t word = r / 8 * 4 * kColumns + 4 * c;
      gptq.push_back(elements[16 * c + nibble(word + r % 8 / 2, r % 2)]);
      const uint64_t place = kAwqPlace[c % 8];
      awq.push_back(
          elements[16 * c +
                   nibble(r * kRowBytes + c / 8 * 4 + place / 2, place % 2)]);
      const uint32_t code = nibble(r * kRowBytes + c / 2, c % 2);
      const uint32_t size = kE2m1[code % 8];
      const int32_t power = powers[c / 32 * kTurnedRows + r];
      e2m1.push_back(static_cast<uint16_t>(
          (size ? size + static_cast<uint32_t>(power) : 0) | (code & 8) << 12));
    }
  for (const TurnedKernel& kernel : usable_turned_kernels()) {
    CAPTURE(kernel.name);
    std::vector<std::byte> tables(kColumns * kTableBytes);
    std::memcpy(tables.data(), elements.data(), tables.size());
    kernel.split(tables.data(), kColumns);
    std::vector<uint16_t> out(kTurnedRows * kColumns);
    const auto part = [&](uint64_t stride) {
      out.assign(out.size(), 0xABCD);
      return Turned{codes.data(), stride, kColumns,
                    reinterpret_cast<std::byte*>(out.data()), 2 * kTurnedRows};
    };
    kernel.gptq(part(4 * kColumns), tables.data());
    CHECK(out == gptq);
    kernel.awq(part(kRowBytes), tables.data());
    CHECK(out == awq);
    kernel.e2m1(part(kRowBytes), powers.data());
    CHECK(out == e2m1);
  }
}

// Each run opens its files anew, and what an earlier one knew of them ends with
// it.
TEST_CASE("made: fp8 of numbers that changed since the run before") {
  std::vector<float> numbers(128 * 128, 1.0F);
  std::vector<File> files{
      {.path = "weight",
       .size = numbers.size() * sizeof(float),
       .codec = Codec::kMemory,
       .memory = reinterpret_cast<const std::byte*>(numbers.data())}};
  Decoding made{.coding = Coding::kFp8Scales,
                .dtype = DType::f32,
                .rows = 128,
                .columns = 128,
                .block_rows = 128,
                .block_columns = 128,
                .name = "w",
                .files = std::make_shared<const std::vector<File>>(files)};
  Matrix::place(made.codes, DType::f32, {1, 128, 128}, 0, 4);
  made.codes.name = "w";
  const auto scale = [&] {
    HandleCache handles;
    DecodeReader reader(handles);
    float got = 0;
    reader.read(made, 0, std::as_writable_bytes(std::span(&got, 1)));
    return got;
  };
  CHECK(scale() == 1.0F / 448);
  numbers[5] = 896;
  CHECK(scale() == 2.0F);
}

TEST_CASE("made: scales that are not numbers are refused, and say where") {
  Matrix matrix(16, 16, 8, 8, DType::i8);
  matrix.scales[3] = std::numeric_limits<float>::quiet_NaN();
  HandleCache handles;
  DecodeReader reader(handles);
  std::vector<float> got(256);
  CHECK_THROWS_WITH_AS(
      reader.read(matrix.made, 0, std::as_writable_bytes(std::span(got))),
      doctest::Contains("w_scale: the scale at [1, 1] is nan"), Error);
  matrix.scales[3] = 0;
  CHECK_THROWS_WITH_AS(
      reader.read(matrix.made, 0, std::as_writable_bytes(std::span(got))),
      doctest::Contains("is 0, and its code is not"), Error);
}

}  // namespace
}  // namespace ckpt::reshard
