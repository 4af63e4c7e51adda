// SPDX-License-Identifier: Apache-2.0
// ggml's blocks for tests, from standard input to standard output.
//
//   ggml_tool types               a line for each: id, name, elements, bytes
//   ggml_tool encode TYPE         numbers, f32, to blocks
//   ggml_tool read TYPE CODING STORED MADE ROWS COLUMNS STEP
//
// `read` reads a matrix as `convert` does (CODING numbers or blocks): stored
// as dtype STORED in pieces of some rows each, made as dtype MADE, by ranges of
// up to STEP bytes.
#include <cstring>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "lib/decoding.h"
#include "reshard/sources/decode.h"
#include "reshard/sources/decode_ggml.h"
#include "reshard/sources/sources.h"

namespace {

using namespace ckpt;

std::vector<std::byte> all_input() {
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

void put(const std::vector<std::byte>& bytes) {
  std::cout.write(reinterpret_cast<const char*>(bytes.data()),
                  static_cast<std::streamsize>(bytes.size()));
}

void list_types() {
  for (const GgmlInfo& info : all_ggml_types())
    std::cout << static_cast<uint32_t>(info.type) << ' ' << info.name << ' '
              << info.elements << ' ' << info.bytes << ' '
              << (info.dtype ? name(*info.dtype) : "-")
              << (reshard::ggml_decode(info.type) ? " decodes" : "")
              << (reshard::ggml_encode(info.type) ? " encodes" : "") << '\n';
}

void encode(const GgmlInfo& type) {
  const std::vector<std::byte> in = all_input();
  std::vector<float> numbers(in.size() / sizeof(float));
  std::memcpy(numbers.data(), in.data(), numbers.size() * sizeof(float));
  const uint64_t count = numbers.size() / type.elements;
  std::vector<std::byte> out(count * type.bytes);
  reshard::ggml_encode(type.type)(numbers.data(), count, out.data());
  put(out);
}

struct Request {
  const GgmlInfo& type;
  bool blocks;
  DType stored, made;
  uint64_t rows, columns, step;
};

// Rows in pieces of one, two, three …, the last ones first in the file.
void place_rows(Tensor& codes, DType dtype, uint64_t rows, uint64_t columns) {
  const uint64_t element = info(dtype).bits / 8;
  const uint64_t row = columns * element;
  codes.name = "w";
  codes.dtype = dtype;
  codes.shape = {1, rows, columns};
  for (uint64_t first = 0, few = 1; first < rows; first += few++) {
    const uint64_t count = std::min(few, rows - first);
    codes.pieces.push_back({.box = {{0, first, 0}, {1, count, columns}},
                            .flat = {},
                            .extent = {.offset = (rows - first - count) * row,
                                       .strides = {count * row, row, element},
                                       .file = 0}});
  }
}

void read(const Request& asked) {
  const std::vector<std::byte> in = all_input();
  std::vector<std::byte> stored(in.size());
  auto files = std::make_shared<std::vector<File>>();
  files->push_back({.path = "codes",
                    .size = stored.size(),
                    .codec = Codec::kMemory,
                    .memory = stored.data()});
  Decoding made{.coding = asked.blocks ? Coding::kGgmlBlocks : Coding::kGgml,
                .dtype = asked.made,
                .rows = asked.rows,
                .columns = asked.columns,
                .ggml = asked.type.type,
                .name = "w"};
  const uint64_t row_bytes =
      asked.columns / asked.type.elements * asked.type.bytes;
  place_rows(made.codes, asked.stored, asked.rows,
             asked.blocks ? asked.columns : row_bytes);
  const uint64_t row = in.size() / asked.rows;
  for (const Piece& piece : made.codes.pieces)
    std::memcpy(stored.data() + piece.extent.offset,
                in.data() + piece.box.offset[1] * row,
                piece.box.shape[1] * row);
  made.files = files;
  std::vector<std::byte> out(
      asked.rows *
      (asked.blocks ? row_bytes : asked.columns * info(asked.made).bits / 8));
  reshard::HandleCache handles;
  reshard::DecodeReader reader(handles);
  std::mt19937_64 random(asked.step);
  for (uint64_t at = 0; at < out.size();) {
    const uint64_t count =
        std::min<uint64_t>(1 + random() % asked.step, out.size() - at);
    reader.read(made, at, {out.data() + at, count});
    at += count;
  }
  put(out);
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 1 && words[0] == "types") {
    list_types();
    return 0;
  }
  const GgmlInfo* type = words.size() < 2 ? nullptr : ggml_from_name(words[1]);
  if (type && words[0] == "encode" && words.size() == 2) {
    encode(*type);
    return 0;
  }
  if (!type || words[0] != "read" || words.size() != 8) {
    std::cerr << "usage: see the head of ggml_tool.cc\n";
    return 2;
  }
  read({*type, words[2] == "blocks", dtype_from_name(words[3]).value(),
        dtype_from_name(words[4]).value(), std::stoull(words[5]),
        std::stoull(words[6]), std::stoull(words[7])});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
