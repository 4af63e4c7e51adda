// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <random>

#include "ckpt/error.h"
#include "containers/zarr/array.h"
#include "containers/zarr/chunks.h"
#include "containers/zarr/dtypes.h"
#include "tests/support/golden.h"
#include "tests/support/materialise.h"
#include "tests/support/temp_file.h"

namespace ckpt::zarr {
namespace {

using nlohmann::json;
using test::TempDir;

struct Read {
  Array array;
  Catalog catalog;
  std::string content;
};

Read read(const std::string& directory, bool content = true) {
  Read read{.array = read_array(directory), .catalog = {}, .content = {}};
  Tensor& tensor = read.catalog.tensors.emplace_back();
  tensor.name = "w";
  tensor.dtype = read.array.dtype;
  tensor.shape = read.array.shape;
  add_chunks(read.array, read.catalog, tensor);
  if (content)
    read.content = test::content(read.catalog, read.catalog.tensors[0]);
  return read;
}

// What an error says; 0: no error.
struct Outcome {
  int code = 0;
  std::string message;
};
Outcome outcome(const std::string& directory) {
  try {
    read(directory);
    return {0, ""};
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  }
}

const json kPlain = {{"zarr_format", 2},      {"shape", {4, 4}},
                     {"chunks", {2, 2}},      {"dtype", "<u2"},
                     {"compressor", nullptr}, {"fill_value", nullptr},
                     {"filters", nullptr},    {"order", "C"}};

// kPlain with members replaced.
std::string described(const json& changes) {
  json all = kPlain;
  all.update(changes);
  return all.dump();
}

}  // namespace

TEST_CASE("zarr: descriptions that are refused, and why") {
  struct Row {
    std::string text;
    int code;
    const char* why;
  };
  const json pair = {{"id", "delta"}, {"dtype", "<i4"}};
  const Row rows[] = {
      {"", 4, ".zarray"},
      {"{", 4, ".zarray"},
      {"[]", 4, "expected an object, found array"},
      {"{}", 4, "zarr_format"},
      {described({{"zarr_format", 3}}), 4, "zarr_format 3, ckpt reads 2"},
      {described({{"shape", "4"}}), 4, "shape: expected a list"},
      {described({{"shape", {4, -4}}}), 4, "shape: expected sizes, found -4"},
      {described({{"shape", {4, 4.5}}}), 4, "expected sizes, found 4.5"},
      {described({{"shape", {4}}}), 4, "1 dimensions, chunks has 2"},
      {described({{"shape", std::vector<int>(65, 1)}}), 4, "65 dimensions"},
      {described({{"chunks", {0, 2}}}), 4, "chunks [0, 2]"},
      {described({{"shape", {1ULL << 62, 8}}}), 4, "more bytes than 64 bits"},
      {described({{"chunks", {1ULL << 62, 8}}}), 4, "more bytes than 64 bits"},
      {described({{"dtype", "|S8"}}), 5, "no tensor has dtype \"|S8\""},
      {described({{"dtype", "<M8[ns]"}}), 5, "no tensor has dtype"},
      {described({{"dtype", "<V2"}}), 5, "no tensor has dtype"},
      {described({{"dtype", "|f4"}}), 5, "no tensor has dtype"},
      {described({{"dtype", {{"a", "<i4"}}}}), 5, "no tensor has dtype"},
      {described({{"order", "K"}}), 4, "order"},
      {described({{"dimension_separator", "-"}}), 4, "dimension_separator"},
      {described({{"compressor", "zlib"}}), 4, "id"},
      {described({{"compressor", {{"level", 3}}}}), 4, "id"},
      {described({{"filters", 3}}), 4, "filters: expected a list"},
      {described({{"fill_value", "x"}}), 4, "fill_value \"x\" is not a u16"},
      {described({{"fill_value", 65536}}), 4, "fill_value 65536 is not a u16"},
      {described({{"fill_value", -1}}), 4, "fill_value -1 is not a u16"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CAPTURE(row.why);
    const TempDir dir;
    dir.write(".zarray", row.text);
    const Outcome result = outcome(dir.path);
    CAPTURE(result.message);
    CHECK(result.code == row.code);
    CHECK(result.message.find(row.why) != std::string::npos);
  }
}

TEST_CASE("zarr: what ckpt can't decompress is known before it is needed") {
  const TempDir dir;
  const auto unreadable = [&](const json& changes) {
    dir.write(".zarray", described(changes));
    return read_array(dir.path).unreadable;
  };
  const json delta = {{"id", "delta"}, {"dtype", "<i4"}};
  const json wide = {{"id", "delta"}, {"dtype", ">i4"}};
  const json half = {{"id", "delta"}, {"dtype", "<f2"}};
  CHECK(unreadable({{"compressor", {{"id", "lzma"}}}}) == "compressor lzma");
  CHECK(unreadable({{"compressor", {{"id", "lz4"}}}}).empty());
  CHECK(unreadable({{"filters", json::array({delta})}}).empty());
  CHECK(unreadable({{"filters", json::array({wide})}}) == "filters delta");
  CHECK(unreadable({{"filters", json::array({half})}}) == "filters delta");
  CHECK(unreadable({{"filters", json::array({delta, delta})}}) ==
        "filters delta, delta");
  CHECK(unreadable({{"filters", json::array()}}).empty());
  CHECK(unreadable({{"compressor", {{"id", "zstd"}, {"checksum", true}}}})
            .empty());
}

TEST_CASE("zarr: fill values") {
  const auto hex = [](const std::string& bytes) {
    std::string text;
    for (const char c : bytes)
      text += fmt::format("{:02x}", static_cast<unsigned char>(c));
    return text;
  };
  struct Row {
    DType dtype;
    json value;
    const char* want;  // "": refused
  };
  // The expected bytes are struct.pack's and torch's.
  const Row rows[] = {
      {DType::f32, 1.5, "0000c03f"},
      {DType::f32, -0.0, "00000080"},
      {DType::f32, 1e300, "0000807f"},
      {DType::f32, "NaN", "0000c07f"},
      {DType::f64, "-Infinity", "000000000000f0ff"},
      {DType::f16, 1.5, "003e"},
      {DType::f16, 65504, "ff7b"},
      {DType::f16, 65520, "007c"},
      {DType::f16, 5.960464477539063e-08, "0100"},
      {DType::f16, 2.98e-08, "0000"},
      {DType::f16, 0.33325, "5535"},
      {DType::f16, "NaN", "007e"},
      {DType::bf16, 1.00390625, "803f"},  // a tie goes to even
      {DType::bf16, 1.01171875, "823f"},
      {DType::bf16, -3.3895313892515355e38, "7fff"},
      {DType::bf16, "Infinity", "807f"},
      {DType::i8, -128, "80"},
      {DType::i8, 128, ""},
      {DType::i8, -129, ""},
      {DType::i64, INT64_MIN, "0000000000000080"},
      {DType::u64, UINT64_MAX, "ffffffffffffffff"},
      {DType::i32, 0.0, "00000000"},
      {DType::i32, 0.5, ""},
      {DType::bool_, true, "01"},
      {DType::bool_, 0, "00"},
      {DType::bool_, 2, ""},
      {DType::c64, {1.0, "NaN"}, "0000803f0000c07f"},
      {DType::c64, 0, "0000000000000000"},
      {DType::c64, {1.0}, ""},
      {DType::f32, "nan", ""},
  };
  for (const Row& row : rows) {
    const std::string value = row.value.dump();
    CAPTURE(value);
    CAPTURE(name(row.dtype));
    CHECK(hex(fill_bytes(row.dtype, row.value).value_or("")) == row.want);
  }
}

TEST_CASE("zarr: descriptions as Megatron writes them") {
  size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           test::data("megatron_zarr"))) {
    const std::string path = entry.path().string();
    if (entry.path().filename() != ".zarray" || entry.file_size() == 0 ||
        path.find("emulated") != std::string::npos)
      continue;
    CAPTURE(path);
    const Array array = read_array(entry.path().parent_path().string());
    CHECK(describe(array.dtype, array.shape, array.chunks) ==
          test::read_all(path));
    ++count;
  }
  CHECK(count > 50);
  CHECK(chunk_name({}, '.') == "0");
  CHECK(chunk_name({0, 12, 3}, '.') == "0.12.3");
  CHECK(grid_of({7, 5, 4}, {3, 2, 9}) == Dims{3, 3, 1});
}

// Against what numpy would hold, element by element.
TEST_CASE("zarr: any shape, chunks, order, with chunks left out") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    const size_t rank = random() % 4;
    Shape shape;
    Dims chunks;
    for (size_t d = 0; d < rank; ++d) {
      shape.push_back(random() % 6 + (random() % 10 != 0));
      chunks.push_back(1 + random() % 4);
    }
    const bool fortran = random() % 2;
    const bool big = random() % 2;
    const bool nested = random() % 2;
    const bool fills = random() % 2;
    const uint64_t count = *element_count(shape);
    std::string want(count * 2, '\0');
    for (uint64_t i = 0; i < count; ++i) {
      want[2 * i] = static_cast<char>(i);
      want[2 * i + 1] = static_cast<char>(1 + i / 256);
    }
    const TempDir dir;
    dir.write(".zarray",
              described({{"shape", std::vector(shape.begin(), shape.end())},
                         {"chunks", std::vector(chunks.begin(), chunks.end())},
                         {"order", fortran ? "F" : "C"},
                         {"dtype", big ? ">u2" : "<u2"},
                         {"fill_value", fills ? json(513) : json()},
                         {"dimension_separator", nested ? "/" : "."}}));
    const Dims grid = grid_of(shape, chunks);
    const Dims strides = row_major_strides(shape);
    const uint64_t cells = *element_count(grid);
    for (uint64_t cell = 0; cell < cells; ++cell) {
      Dims index(rank, 0);
      for (uint64_t rest = cell, d = rank; d-- > 0; rest /= grid[d])
        index[d] = rest % grid[d];
      const bool absent = fills && random() % 3 == 0;
      const uint64_t size = *element_count(chunks);
      std::string chunk(2 * size, '?');
      for (uint64_t i = 0; i < size; ++i) {
        uint64_t at = 0;
        bool inside = true;
        uint64_t rest = i;
        for (size_t k = 0; k < rank; ++k) {
          const size_t d = fortran ? k : rank - 1 - k;
          const uint64_t coordinate = index[d] * chunks[d] + rest % chunks[d];
          rest /= chunks[d];
          inside = inside && coordinate < shape[d];
          at += coordinate * strides[d];
        }
        if (!inside) continue;
        if (absent) want.replace(2 * at, 2, "\1\2");
        chunk[2 * i] = want[2 * at + big];
        chunk[2 * i + 1] = want[2 * at + 1 - big];
      }
      if (!absent) dir.write(chunk_name(index, nested ? '/' : '.'), chunk);
    }
    CAPTURE(to_string(shape));
    CAPTURE(to_string(chunks));
    const Read result = read(dir.path);
    CHECK(result.content == want);
    CHECK(result.catalog.problems.empty());
  }
}

TEST_CASE("zarr: chunks that are not what they should be") {
  struct Row {
    std::function<void(const TempDir&)> wound;
    int code;
    const char* why;
  };
  const auto path = [](const TempDir& dir, const char* name) {
    return std::filesystem::path(dir.file(name));
  };
  const Row rows[] = {
      {[](const TempDir& d) { d.write("0.1", "1234567"); }, 4,
       "chunk of 7 bytes, u16 [2, 2] needs 8"},
      {[](const TempDir& d) { d.write("0.1", "123456789"); }, 4,
       "chunk of 9 bytes"},
      {[&](const TempDir& d) { remove(path(d, "1.0")); }, 4,
       "chunk 1.0 is missing (3 of 4 chunks are there"},
      {[&](const TempDir& d) {
         remove(path(d, "1.0"));
         create_directory(path(d, "1.0"));
       },
       4, "is a directory, not a regular file"},
      {[&](const TempDir& d) {
         remove(path(d, "1.1"));
         create_symlink("nowhere", path(d, "1.1"));
       },
       3, "broken symlink"},
      {[&](const TempDir& d) { rename(path(d, "1.1"), path(d, "01.1")); }, 4,
       "chunk 1.1 is missing"},
      {[&](const TempDir& d) { rename(path(d, "1.1"), path(d, "1.2")); }, 4,
       "chunk 1.1 is missing"},
      {[&](const TempDir& d) { rename(path(d, "1.1"), path(d, "1.1.0")); }, 4,
       "chunk 1.1 is missing"},
      // An absurd grid may not cost memory or time.
      {[](const TempDir& d) {
         d.write(".zarray", described({{"shape", {1ULL << 38, 1ULL << 20}},
                                       {"chunks", {1, 1}}}));
       },
       4, "of 288230376151711744 chunks are there"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    const TempDir dir;
    dir.write(".zarray", described(json::object()));
    for (const char* name : {"0.0", "0.1", "1.0", "1.1"})
      dir.write(name, "12345678");
    row.wound(dir);
    const Outcome result = outcome(dir.path);
    CAPTURE(result.message);
    CHECK(result.code == row.code);
    CHECK(result.message.find(row.why) != std::string::npos);
  }
}

TEST_CASE("zarr: a fill value stands for any number of chunks") {
  const TempDir dir;
  dir.write(".zarray", described({{"shape", {1ULL << 38, 1ULL << 20}},
                                  {"chunks", {1, 2}},
                                  {"fill_value", 7}}));
  dir.write("5.3", "abcd");
  dir.write("274877906944.0", "outside");
  dir.write("0.0.partial", "");
  const Read result = read(dir.path, false);
  CHECK(result.catalog.tensors[0].pieces.size() <= 7);
  uint64_t elements = 0;
  for (const Piece& piece : result.catalog.tensors[0].pieces)
    elements += volume(piece.box);
  CHECK(elements == 1ULL << 58);
  REQUIRE(result.catalog.problems.size() == 1);
  CHECK(result.catalog.problems[0].kind == "foreign_file");
}

TEST_CASE("zarr: what other tools write") {
  const std::string folder =
      test::data("megatron_zarr/zarr_v2_variants_emulated/ckpt");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string directory = entry.path().string();
    if (!is_array(directory)) continue;
    CAPTURE(directory);
    if (read_array(directory).unreadable.empty())
      CHECK_NOTHROW(read(directory));
  }
}

}  // namespace ckpt::zarr
