// SPDX-License-Identifier: Apache-2.0
// What the suite ggml_types cannot ask of the gguf package: ranges, refusals,
// and the types that only llama.cpp's C code reads.
#include "reshard/sources/decode_ggml.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "ckpt/error.h"
#include "reshard/sources/decode.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kRows = 5;

// A matrix of two blocks to a row, and a reader of it.
struct Blocks {
  Blocks(const GgmlInfo& info, Coding coding) : type(info) {
    made.coding = coding;
    made.ggml = type.type;
    made.rows = kRows;
    made.columns = 2 * uint64_t{type.elements};
    made.name = "w";
    const bool encodes = coding == Coding::kGgmlBlocks;
    const Shape shape{1, kRows,
                      encodes ? made.columns : 2 * uint64_t{type.bytes}};
    made.dtype = encodes ? DType::u8 : DType::f32;
    made.codes.name = "w";
    made.codes.dtype = encodes ? DType::f32 : DType::u8;
    made.codes.shape = shape;
    const uint64_t element = encodes ? 4 : 1;
    const uint64_t row = shape[2] * element;
    stored.resize(kRows * row);
    size = kRows * (encodes ? 2 * type.bytes : 4 * made.columns);
    auto files = std::make_shared<std::vector<File>>();
    files->push_back({.path = "codes",
                      .size = stored.size(),
                      .codec = Codec::kMemory,
                      .memory = stored.data()});
    made.files = std::move(files);
    made.codes.pieces = {
        {.box = Box::whole(shape),
         .flat = {},
         .extent = {
             .offset = 0, .strides = {kRows * row, row, element}, .file = 0}}};
  }
  float* numbers() { return reinterpret_cast<float*>(stored.data()); }
  std::vector<std::byte> read(uint64_t offset, uint64_t count) {
    std::vector<std::byte> bytes(count);
    reader.read(made, offset, bytes);
    return bytes;
  }

  const GgmlInfo& type;
  Decoding made;
  std::vector<std::byte> stored;
  uint64_t size = 0;
  HandleCache handles;
  DecodeReader reader{handles};
};

TEST_CASE("ggml: the table and the functions agree") {
  for (const GgmlInfo& info : all_ggml_types()) {
    CAPTURE(info.name);
    CHECK(ggml_info(info.type) == &info);
    CHECK(ggml_from_name(info.name) == &info);
    CHECK(info.decodes == (ggml_decode(info.type) != nullptr));
    CHECK(info.encodes == (ggml_encode(info.type) != nullptr));
    CHECK(info.dtype.has_value() == (info.elements == 1));
  }
  CHECK(ggml_from_name("iq2_xxs") == ggml_info(16));
  CHECK(ggml_info(4) == nullptr);
  CHECK(ggml_info(0xFFFFFFFF) == nullptr);
  CHECK(ggml_from_name("") == nullptr);
}

TEST_CASE("ggml: any range is a part of the whole") {
  std::mt19937 random(3);
  for (const GgmlInfo& info : all_ggml_types())
    for (const Coding coding : {Coding::kGgml, Coding::kGgmlBlocks}) {
      if (coding == Coding::kGgml ? !info.decodes : !info.encodes) continue;
      CAPTURE(info.name);
      Blocks blocks(info, coding);
      if (coding == Coding::kGgml)
        for (std::byte& byte : blocks.stored)
          byte = static_cast<std::byte>(random());
      else
        for (uint64_t i = 0; i < kRows * blocks.made.columns; ++i)
          blocks.numbers()[i] = static_cast<float>(random() % 1000) - 500;
      const std::vector<std::byte> whole = blocks.read(0, blocks.size);
      for (int i = 0; i < 50; ++i) {
        const uint64_t begin = random() % blocks.size;
        const uint64_t count = 1 + random() % (blocks.size - begin);
        const auto part = blocks.read(begin, count);
        CHECK(std::memcmp(part.data(), whole.data() + begin, count) == 0);
      }
    }
}

TEST_CASE("ggml: numbers that a block has no room for are refused") {
  for (const GgmlInfo& info : all_ggml_types()) {
    if (!info.encodes) continue;
    CAPTURE(info.name);
    Blocks blocks(info, Coding::kGgmlBlocks);
    const uint64_t bad = 3 * blocks.made.columns + info.elements + 7;
    for (const float number : {std::numeric_limits<float>::quiet_NaN(),
                               -std::numeric_limits<float>::infinity()}) {
      blocks.numbers()[bad] = number;
      CHECK_THROWS_WITH_AS(
          blocks.read(0, blocks.size),
          doctest::Contains(
              fmt::format("codes: w: a number in the block of {} at [3, {}] is "
                          "not finite",
                          info.name, info.elements)
                  .c_str()),
          Error);
      // What is elsewhere can be had.
      CHECK_NOTHROW(blocks.read(0, 2 * info.bytes));
    }
    blocks.numbers()[bad] = 1e38F;
    if (info.type == GgmlType::mxfp4)
      CHECK_NOTHROW(blocks.read(0, blocks.size));  // scales are powers of two
    else
      CHECK_THROWS_WITH_AS(blocks.read(0, blocks.size),
                           doctest::Contains("is too large"), Error);
    blocks.numbers()[bad] = 60000;
    CHECK_NOTHROW(blocks.read(0, blocks.size));
  }
}

// The gguf package does not read them; the numbers follow from what ggml's C
// code says of their bits, lowest first: -d or d; (code - 1) * d.
TEST_CASE("ggml: Q1_0 and Q2_0") {
  const auto decoded = [](GgmlType type, uint8_t code) {
    const GgmlInfo& info = *ggml_info(type);
    std::vector<std::byte> block(info.bytes, std::byte{code});
    block[0] = std::byte{0};
    block[1] = std::byte{0x42};  // 3
    std::vector<float> numbers(info.elements);
    ggml_decode(type)(block.data(), 1, numbers.data());
    return numbers;
  };
  const std::vector<float> ones = decoded(GgmlType::q1_0, 0b01100001);
  const float signs[] = {3, -3, -3, -3, -3, 3, 3, -3};
  for (size_t i = 0; i < ones.size(); ++i) CHECK(ones[i] == signs[i % 8]);
  const std::vector<float> twos = decoded(GgmlType::q2_0, 0b11100100);
  const float wants[] = {-3, 0, 3, 6};
  for (size_t i = 0; i < twos.size(); ++i) CHECK(twos[i] == wants[i % 4]);
}

}  // namespace
}  // namespace ckpt::reshard
