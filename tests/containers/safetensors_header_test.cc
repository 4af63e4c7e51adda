// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "containers/safetensors/header.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt::safetensors {
namespace {

std::string framed(std::string_view json, size_t data_bytes) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    file[i] = static_cast<char>(json.size() >> (8 * i));
  return file + std::string(json) + std::string(data_bytes, 'x');
}

Header read(const std::string& content) {
  const test::TempFile temp(content);
  return read_header(io::Handle::open_read(temp.path));
}

// Everything a header says, or why it is refused.
template <class Read>
std::string outcome(Read read) {
  try {
    const Header header = read();
    std::string text = fmt::format("data at {}\n", header.data_begin);
    for (const Entry& e : header.entries)
      text += fmt::format("{} {} {} {} {}\n", e.name, info(e.dtype).safetensors,
                          to_string(e.shape), e.begin, e.end);
    if (header.metadata)
      for (const auto& [key, value] : *header.metadata)
        text += fmt::format("{} = {}\n", key, value);
    return text;
  } catch (const Error& error) {
    return error.what();
  }
}

std::string whole(std::string_view json, uint64_t file_size) {
  return outcome([&] { return parse_header(json, file_size, "f"); });
}

std::string in_parts(std::string_view json, uint64_t file_size, size_t part) {
  const auto read = [json](uint64_t at, std::span<char> to) {
    json.copy(to.data(), to.size(), at);
  };
  return outcome([&] {
    return parse_header(text::Parts(json.size(), read, part), json.size(),
                        file_size, "f");
  });
}

}  // namespace

TEST_CASE("safetensors header: refuses, and says why") {
  struct Row {
    std::string_view json;
    size_t data;
    const char* why;
  };
  const Row rows[] = {
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "a: data_offsets hold 4 bytes, F32 [2] needs 8"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8,
       "a: data begins at byte 65, expected 61"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 2,
       "the header describes 4 bytes of data, the file holds 2"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5,
       "the header describes 4 bytes of data, the file holds 5"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4,
       "a: data_offsets [4, 0] end before they begin"},
      {R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", 4,
       "a: expected an integer from 0 to 2^64-1, found 4.0 at byte 36"},
      {R"({"a":{"dtype":"F5","shape":[4],"data_offsets":[0,4]}})", 4,
       "a: unknown dtype \"F5\" at byte"},
      {R"({"a":{"shape":[4],"data_offsets":[0,4]}})", 4,
       "a: field \"dtype\" is missing"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})",
       1, "a: field \"dtype\" given twice"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1,
       "a: data_offsets has 3 elements, expected 2"},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2,
       "a: F4 [3] has 12 bits, no whole number of bytes"},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
       R"("\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       0, "a: tensor given twice"},
      {R"({"__metadata__":{"k":1}})", 0,
       "__metadata__: expected a string, found 1"},
      {R"({"__metadata__":{"k":"1","k":"1"}})", 0,
       "k: key in __metadata__ given twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0,
       "\"__metadata__\" given twice"},
      {R"([])", 0, "expected an object, found an array at byte 8"},
      {R"({"a":{"dtype":"U8","shape":[1],)"
       R"("data_offsets":[18446744073709551615,18446744073709551615]}})",
       1, "data_offsets hold 0 bytes, U8 [1] needs 1"},
      {R"({"a":{"dtype":"U8","shape":[0],)"
       R"("data_offsets":[18446744073709551615,18446744073709551615]}})",
       0, "the header describes 18446744073709551615 bytes of data"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    CHECK_THROWS_WITH_AS(read(framed(row.json, row.data)),
                         doctest::Contains(row.why), Error);
  }
}

TEST_CASE("safetensors header: no file of ours, and what it is instead") {
  struct Row {
    std::string content;
    const char* why;
  };
  const Row rows[] = {
      {"", "file of 0 bytes, safetensors files have 8 at least"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
       "this is a git-lfs pointer"},
      {std::string("PK\3\4") + std::string(60, '\0'), "this is a zip archive"},
      {std::string(8, '\xff') + "{}", "is more than 100000000 bytes"},
      {framed("{}", 0).substr(0, 9),
       "header of 2 bytes in a file of 9: the file is cut off"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    CHECK_THROWS_WITH_AS(read(row.content), doctest::Contains(row.why), Error);
  }
}

TEST_CASE("safetensors header: every malformed file has its outcome") {
  const auto rows = test::bad_rows("safetensors/");
  CHECK(rows.size() == 63);
  for (const test::Bad& row : rows) {
    CAPTURE(row.file);
    CAPTURE(row.what);
    bool accepted = true;
    try {
      read_header(io::Handle::open_read(test::data("bad/" + row.file)));
    } catch (const Error& error) {
      accepted = false;
      CHECK((error.code() == ExitCode::kDamaged ||
             error.code() == ExitCode::kUnsafe));
    }
    CHECK(row.may(accepted ? "ACCEPT" : "REJECT"));
  }
}

TEST_CASE("safetensors header: the same read part by part") {
  std::vector<std::string> files;
  for (const test::Bad& row : test::bad_rows("safetensors/"))
    files.push_back(io::read_file(test::data("bad/" + row.file), 1 << 30));
  files.push_back(framed(
      "{ \"\u00e9\U0001f600\" : {\"dtype\":\"U8\", \"shape\":[ 2 , 1],"
      "\"data_offsets\":[0,2]},\n\"a\\u00e9\\n\":{\"x\":[{},null,1e5],"
      "\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[2,3]},"
      "\"b\":{\"dtype\":\"I64\",\"shape\":[1,1],\"data_offsets\":[3,11]},"
      "\"__metadata__\":{\"format\":\"pt\",\"\u00e9\":\"" +
          std::string(900, 'v') + "\"}}   ",
      11));
  CHECK(
      whole(std::string_view(files.back()).substr(8, files.back().size() - 19),
            files.back().size())
          .starts_with("data at "));
  size_t compared = 0;
  for (const std::string& file : files) {
    if (file.size() < 8) continue;
    uint64_t length = 0;
    for (size_t i = 8; i-- > 0;) length = length << 8 | uint8_t(file[i]);
    if (length > std::min<uint64_t>(file.size() - 8, 10'000)) continue;
    const auto json = std::string_view(file).substr(8, length);
    const std::string expected = whole(json, file.size());
    CAPTURE(json.substr(0, 200));
    for (const size_t part : {1, 2, 3, 5, 8, 13, 40, 100, 1000}) {
      CAPTURE(part);
      // It is looked for in the first part.
      if (part < 3 && json.starts_with("\xef\xbb\xbf")) continue;
      const std::string found = in_parts(json, file.size(), part);
      // An error before the bad character is found first.
      if (expected.find("invalid UTF-8") == expected.npos)
        CHECK(found == expected);
      else
        CHECK(found.find("at byte") != found.npos);
      ++compared;
    }
  }
  CHECK(compared > 300);
}

TEST_CASE("safetensors header: spelled compactly or not, the same") {
  const std::string_view rows[] = {
      R"({"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}})",
      R"({"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}})",
      R"({"a":{"dtype":"BF16","shape":[06],"data_offsets":[0,12]}})",
      R"({"a":{"dtype":"BF16","shape":[6,],"data_offsets":[0,12]}})",
      R"({"a":{"dtype":"BF16","shape":[,6],"data_offsets":[0,12]}})",
      R"({"a":{"dtype":"BF16","shape":[-6],"data_offsets":[0,12]}})",
      R"({"a":{"dtype":"BF16","shape":[6.0],"data_offsets":[0,12]}})",
      R"({"a":{"dtype":"B","shape":[6],"data_offsets":[0,12]}})",
      R"({"a":{"dtype":"","shape":[6],"data_offsets":[0,12]}})",
      R"({"a":{"dtype":"BF16","shape":[6],"data_offsets":[00,12]}})",
      R"({"a":{"dtype":"BF16","shape":[6],"data_offsets":[0,12,13]}})",
      R"({"a":{"dtype":"BF16","shape":[6],"data_offsets":[0]}})",
      R"({"a":{"dtype":"BF16","shape":[6],"data_offsets":[0,12])",
      R"({"a":{"dtype":"BF16","shape":[6],"data_offsets":[0,12]},"x":1}})",
      R"({"a":{"dtype":"BF16","shape":[6],"data_offsets":[0,12]},})",
      R"({"a":{"dtype":"BF16","shape":[1,1,1,1,1,1,1,6],)"
      R"("data_offsets":[0,12]}})",
      R"({"a":{"dtype":"BF16","shape":[1,1,1,1,1,1,1,1,6],)"
      R"("data_offsets":[0,12]}})",
      R"({"a":{"dtype":"BF16","shape":[0,18446744073709551615],)"
      R"("data_offsets":[0,0]}})",
      R"({"a":{"dtype":"BF16","shape":[0,18446744073709551616],)"
      R"("data_offsets":[0,0]}})",
      R"({"a":{"dtype":"BF16","shape":[0,9999999999999999999],)"
      R"("data_offsets":[0,0]}})",
      R"({"a":{"dtype":"BF16","shape":[0,10000000000000000000],)"
      R"("data_offsets":[0,0]}})",
  };
  for (const std::string_view row : rows) {
    CAPTURE(row);
    // A space is not part of the compact spelling, so the scanner reads that
    // one. The messages for the two differ only in positions.
    std::string spaced(row);
    spaced.insert(spaced.find("\"dtype\":"), " ");
    const auto without_numbers = [](std::string text) {
      std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
      return text;
    };
    for (const uint64_t data : {0, 2, 12}) {
      const uint64_t size = 8 + row.size() + data;
      CHECK(without_numbers(whole(row, size)) ==
            without_numbers(whole(spaced, size + 1)));
    }
  }
}

TEST_CASE("safetensors header: encodes as serde_json does") {
  const std::string name = "\x01\n\t\"\\/\x7f\u00e9";
  const std::vector<Described> tensors = {
      {.name = name, .dtype = "F32", .shape = {2, 3}, .bytes = 24},
      {.name = "", .dtype = "U8", .shape = {}, .bytes = 1}};
  const std::string encoded =
      encode_header(tensors, Metadata{{"format", "pt"}});
  const std::string json =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"\\u0001\\n\\t\\\"\\\\/\x7f\u00e9\":{\"dtype\":\"F32\",\"shape\":[2,3],"
      "\"data_offsets\":[0,24]},"
      "\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[24,25]}}";
  CHECK(encoded.size() % 8 == 0);
  CHECK(encoded.substr(8, json.size()) == json);
  const Header header =
      parse_header(encoded.substr(8), encoded.size() + 25, "f");
  CHECK(header.entries[0].name == name);
  CHECK(header.entries[1].begin == encoded.size() + 24);
  CHECK(encode_header({}, std::nullopt).substr(8) == "{}      ");
}

}  // namespace ckpt::safetensors
