// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <random>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"
#include "lib/text/json.h"
#include "lib/text/name_table.h"
#include "lib/text/scan.h"
#include "lib/text/suggest.h"
#include "lib/text/utf8.h"

namespace ckpt::text {
namespace {

std::string repeat(std::string_view text, size_t times) {
  std::string all;
  while (times-- > 0) all += text;
  return all;
}

}  // namespace

TEST_CASE("parse_json: takes what the standard has") {
  struct Row {
    std::string_view json;
    std::string_view dumped;
  };
  const Row rows[] = {
      {" {} ", "{}"},
      {"[]", "[]"},
      {"\t[1, -2 ,3.5,\r\n1e2, true,false,null]\n",
       "[1,-2,3.5,100.0,true,false,null]"},
      {"18446744073709551615", "18446744073709551615"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"18446744073709551616", "1.8446744073709552e+19"},
      {"1e-999", "0.0"},
      {R"({"b":{"a":[{}]},"a":""})", R"({"a":"","b":{"a":[{}]}})"},
      {R"("\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00")",
       "\"\\\"\\\\/\\b\\f\\n\\r\\tA\u00e9\U0001F600\""},
      {R"({"":1,"\u0000":2})", R"({"":1,"\u0000":2})"},
      {"\"\x7f\"", "\"\x7f\""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    CHECK(parse_json(row.json, "f").dump() == row.dumped);
  }
  CHECK_NOTHROW(parse_json(repeat("[", 128) + repeat("]", 128), "f"));
}

TEST_CASE("parse_json: refuses, and says why") {
  struct Row {
    std::string json;
    const char* why;
  };
  const Row rows[] = {
      {"", "f: JSON ends where a value is expected at byte 0"},
      {"  ", "JSON ends where a value is expected at byte 2"},
      {"\xef\xbb\xbf{}", "byte order mark at byte 0"},
      {"{}x", "more bytes after the JSON value at byte 2"},
      {"{}{}", "more bytes after the JSON value at byte 2"},
      {std::string("{}\0", 3), "more bytes after the JSON value at byte 2"},
      {"[1,]", "trailing comma in JSON at byte 3"},
      {R"({"a":1,})", "trailing comma in JSON at byte 7"},
      {"[,1]", "expected a JSON value at byte 1"},
      {"[1 2]", "expected ',' or ']' at byte 3"},
      {"[1}", "expected ',' or ']' at byte 2"},
      {"[1", "JSON ends inside a container at byte 2"},
      {R"({"a" 1})", "expected ':' after a key at byte 5"},
      {"{a:1}", "expected a key in quotes at byte 1"},
      {"{'a':1}", "expected a key in quotes at byte 1"},
      {"/**/{}", "expected a JSON value at byte 0"},
      {R"({"a":1,"b":2,"a":3})", "key \"a\" given twice"},
      {R"({"x":{"a":1,"\u0061":3}})", "key \"a\" given twice"},
      {"\"a\nb\"", "unescaped control character in a string at byte 2"},
      {"\"ab", "JSON ends inside a string at byte 3"},
      {"\"ab\\", "unknown escape in a string at byte 4"},
      {R"("\x41")", "unknown escape in a string"},
      {R"("\ud800")", "lone surrogate"},
      {R"("\ud800x")", "lone surrogate"},
      {R"("\ud800\ud800")", "lone surrogate"},
      {R"("\udc00")", "lone surrogate"},
      {R"("\u12g4")", "\\u needs four hexadecimal digits"},
      {R"("\u-123")", "\\u needs four hexadecimal digits"},
      {R"("\u12)", "\\u needs four hexadecimal digits"},
      {"\"\xc3\x28\"", "invalid UTF-8 in JSON at byte 1"},
      {"\"\xed\xa0\x80\"", "invalid UTF-8 in JSON at byte 1"},
      {"\"\xc0\x80\"", "invalid UTF-8 in JSON at byte 1"},
      {"01", "malformed number"},
      {"-", "malformed number"},
      {"1.", "malformed number"},
      {".5", "expected a JSON value"},
      {"1e", "malformed number"},
      {"+1", "expected a JSON value"},
      {"0x10", "more bytes after the JSON value"},
      {"1e999", "number too large"},
      {"NaN", "expected a JSON value"},
      {"nul", "expected a JSON value"},
      {"truex", "more bytes"},
      {repeat("[", 129) + repeat("]", 129), "nested deeper than 128"},
      {repeat("[", 100'000), "nested deeper than 128 at byte 128"},
      {repeat("{\"a\":", 100'000), "nested deeper than 128"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json.substr(0, 80));
    CHECK_THROWS_WITH_AS(parse_json(row.json, "f"), doctest::Contains(row.why),
                         Error);
  }
}

TEST_CASE("parse_python_json: NaN and Infinity are numbers") {
  const auto json = parse_python_json("[NaN,Infinity,-Infinity,1]", "f");
  CHECK(std::isnan(json[0].get<double>()));
  CHECK(std::isinf(json[1].get<double>()));
  CHECK(json[2].get<double>() < 0);
  CHECK_THROWS_AS(parse_python_json("[Inf]", "f"), Error);
  CHECK_THROWS_AS(parse_python_json("[-]", "f"), Error);
}

TEST_CASE("members: errors name the key") {
  const auto json = parse_json(R"({"s":"x","n":3,"m":-1,"a":[]})", "f");
  CHECK(string_member(json, "s", "f") == "x");
  CHECK(uint_member(json, "n", "f") == 3);
  CHECK_THROWS_WITH(member(json, "z", "f"), "f: key \"z\" is missing");
  CHECK_THROWS_WITH(string_member(json, "a", "f"),
                    "f: a: expected a string, found an array");
  CHECK_THROWS_WITH(uint_member(json, "m", "f"),
                    doctest::Contains("m: expected an integer from 0"));
}

TEST_CASE("scanner: skip is as strict as reading, and does not recurse") {
  const auto skip = [](const std::string& text) {
    Scanner scan(text, "f");
    scan.skip();
    scan.finish();
  };
  CHECK_NOTHROW(skip(R"({"a":[1,{"b":[[],{}]},"x\n"],"c":null})"));
  const std::string bad[] = {
      "[1,{\"a\":01}]", "{\"a\":[1,]}",         "{\"a\":tru}", "[[[1]]",
      "[\"\\ud800\"]",  repeat("[", 1'000'000), "{\"a\":[1}]", "[1.5.2]"};
  for (const std::string& text : bad) {
    CAPTURE(text.substr(0, 40));
    CHECK_THROWS_AS(skip(text), Error);
  }
}

TEST_CASE("scanner: integers are exact or errors") {
  const auto read = [](std::string_view text) {
    return Scanner(text, "f").unsigned_integer();
  };
  CHECK(read("0") == 0);
  CHECK(read("18446744073709551615") == UINT64_MAX);
  for (const char* text : {"18446744073709551616", "-1", "-0", "1.0", "1e0",
                           "01", "\"1\"", "null", "[1]"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(
        read(text), doctest::Contains("expected an integer from 0 to 2^64-1"),
        Error);
  }
}

TEST_CASE("glob: matches as a shell does, dots included") {
  struct Row {
    const char* pattern;
    const char* name;
    bool matches;
  };
  const Row rows[] = {
      {"*", "", true},
      {"*", "a.b.c", true},
      {"", "", true},
      {"", "a", false},
      {"a*c", "abbc", true},
      {"a*c", "abbd", false},
      {"*.weight", "layers.0.weight", true},
      {"*.weight", "layers.0.weights", false},
      {"layers.?.w", "layers.3.w", true},
      {"layers.?.w", "layers.13.w", false},
      {"?", "\u00e9", true},
      {"[\u00e0-\u00ef]", "\u00e9", true},
      {"[abc]x", "bx", true},
      {"[!abc]x", "bx", false},
      {"[^abc]x", "dx", true},
      {"[0-9]", "7", true},
      {"[a-]", "-", true},
      {"[]a]", "]", true},
      {"[!]]", "]", false},
      {"{a,b}", "b", true},
      {"{a,b}", "c", false},
      {"layers.{0,1{2,3}}.*", "layers.13.w", true},
      {"layers.{0,1{2,3}}.*", "layers.1.w", false},
      {"{,x}y", "y", true},
      {"{a}", "a", true},
      {"a}", "a}", true},
      {"\\*", "*", true},
      {"\\*", "a", false},
      {"\\{a\\}", "{a}", true},
      {"*a*b*", "xxaxxbxx", true},
      {"*a*b*", "xxbxxaxx", false},
      {"a**b", "ab", true},
      {"*\\", "x\\", true},
  };
  for (const Row& row : rows) {
    CAPTURE(row.pattern);
    CAPTURE(row.name);
    CHECK(Glob(row.pattern).matches(row.name) == row.matches);
  }
  CHECK_THROWS_AS(Glob("[ab"), Error);
  CHECK_THROWS_AS(Glob("{a,b"), Error);
  CHECK_THROWS_WITH(Glob(repeat("{a,b}", 40)),
                    doctest::Contains("more than 4096 alternatives"));
}

TEST_CASE("glob: no exponential backtracking") {
  const Glob glob(repeat("*a", 1000) + "b");
  CHECK(!glob.matches(repeat("a", 20'000)));
}

// The obvious exponential matcher.
bool naive(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*')
    return naive(pattern.substr(1), name) ||
           (!name.empty() && naive(pattern, name.substr(1)));
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         naive(pattern.substr(1), name.substr(1));
}

TEST_CASE("glob: agrees with the naive matcher") {
  std::mt19937 random(3);
  const auto word = [&](std::string_view letters, size_t longest) {
    std::string text(random() % (longest + 1), ' ');
    for (char& c : text) c = letters[random() % letters.size()];
    return text;
  };
  for (int round = 0; round < 20'000; ++round) {
    const std::string pattern = word("ab*?", 7), name = word("ab", 9);
    CAPTURE(pattern);
    CAPTURE(name);
    REQUIRE(Glob(pattern).matches(name) == naive(pattern, name));
  }
}

TEST_CASE("nearest: only what is near") {
  const std::vector<std::string> names = {"safetensors", "torch", "fairseq2"};
  CHECK(nearest("safetensor", names) == "safetensors");
  CHECK(nearest("fairseq", names) == "fairseq2");
  CHECK(nearest("pytorch", names) == "torch");
  CHECK(nearest("megatron", names).empty());
  CHECK(nearest("", names).empty());
}

TEST_CASE("counted") {
  CHECK(counted(0, "file") == "0 files");
  CHECK(counted(1, "file") == "1 file");
  CHECK(counted(2, "file") == "2 files");
}

TEST_CASE("iec_size") {
  CHECK(iec_size(0) == "0 B");
  CHECK(iec_size(1023) == "1023 B");
  CHECK(iec_size(3277) == "3.2 KiB");
  CHECK(iec_size((1 << 20) - 1) == "1.0 MiB");
  CHECK(iec_size(16535624089) == "15.4 GiB");
  CHECK(iec_size(UINT64_MAX) == "16.0 EiB");
}

TEST_CASE("parse_size") {
  CHECK(parse_size("123") == 123);
  CHECK(parse_size("5GB") == 5'000'000'000);
  CHECK(parse_size("5 GiB") == uint64_t{5} << 30);
  CHECK(parse_size("1.5gib") == uint64_t{3} << 29);
  CHECK(parse_size("0.1MB") == 100'000);
  CHECK(parse_size("10b") == 10);
  CHECK(parse_size("4G") == uint64_t{4} << 30);
  CHECK(parse_size("512m") == uint64_t{512} << 20);
  for (const char* text :
       {"", "GB", "5GG", "5GBs", "-5GB", "1..5GB", "1.GB", "1.2.3GB", ".5GB",
        "18446744073709551616", "99999999PB"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_size(text), Error);
  }
}

TEST_CASE("printable: a name can't drive a terminal") {
  struct Row {
    std::string_view name;
    std::string_view shown;
  };
  const Row rows[] = {
      {"layers.0.w", "layers.0.w"},
      {"\u5c42.\u6a29\u91cd \U0001F600", "\u5c42.\u6a29\u91cd \U0001F600"},
      {{"a\0b", 3}, "a\\x00b"},
      {"a\nb\r\t", "a\\x0ab\\x0d\\x09"},
      {"\x1b[31m", "\\x1b[31m"},
      {"\x7f", "\\x7f"},
      {"\u009b", "\\xc2\\x9b"},                       // C1: CSI
      {"a\u202etxt.exe", "a\\xe2\\x80\\xaetxt.exe"},  // bidi override
      {"\u2066x\u2069", "\\xe2\\x81\\xa6x\\xe2\\x81\\xa9"},
      {"\u2028", "\\xe2\\x80\\xa8"},
      {"\xff\xc3", "\\xff\\xc3"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
  };
  for (const Row& row : rows) CHECK(printable(row.name) == row.shown);
}

// Table 3-7 of the Unicode standard: lead byte, then the range of the second
// byte; the others are 80..BF.
size_t well_formed(std::string_view text) {
  struct Row {
    int first, last, low, high;
    size_t length;
  };
  constexpr Row kRows[] = {
      {0x00, 0x7F, 0, 0, 1},       {0xC2, 0xDF, 0x80, 0xBF, 2},
      {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
      {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
      {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4},
      {0xF4, 0xF4, 0x80, 0x8F, 4}};
  const auto within = [&](size_t i, int low, int high) {
    const int byte = i < text.size() ? static_cast<uint8_t>(text[i]) : -1;
    return byte >= low && byte <= high;
  };
  for (const Row& row : kRows) {
    if (!within(0, row.first, row.last)) continue;
    bool good = row.length == 1 || within(1, row.low, row.high);
    for (size_t i = 2; i < row.length; ++i) good &= within(i, 0x80, 0xBF);
    return good ? row.length : 0;
  }
  return 0;
}

TEST_CASE("utf8: what is well-formed, wherever it stands") {
  std::mt19937 random(3);
  const auto below = [&](uint32_t end) {
    return static_cast<uint32_t>(random() % end);
  };
  size_t valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    // Mostly ASCII, as headers are, with hard cases anywhere in it.
    std::string text(random() % 300, 'a');
    for (uint32_t left = random() % 4; left > 0; --left) {
      constexpr uint8_t kEdges[] = {0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                    0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xED,
                                    0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
      std::string odd;
      if (random() % 2)
        append_utf8(odd, random() % 2 ? below(0xD800 - 0x80) + 0x80
                                      : below(0x100000) + 0x10000);
      else
        for (uint32_t n = 1 + random() % 4; n > 0; --n)
          odd += static_cast<char>(kEdges[random() % std::size(kEdges)]);
      text.insert(random() % (text.size() + 1), odd);
    }
    bool want = true;
    for (size_t at = 0; want && at < text.size();) {
      const size_t length = well_formed(std::string_view(text).substr(at));
      want = length != 0;
      at += length;
    }
    valid += want;
    if (is_utf8(text) != want) FAIL("round " << round);
  }
  CHECK(valid > 5000);
  CHECK(valid < 15'000);
}

TEST_CASE("utf8: what it appends it reads back") {
  for (char32_t code :
       {0x0u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text;
    append_utf8(text, code);
    CHECK(first_char(text).code == code);
    CHECK(first_char(text).length == text.size());
    CHECK(is_utf8(text));
    for (size_t cut = 0; cut <= text.size(); ++cut)
      CHECK(whole_chars("ab" + text.substr(0, cut)) ==
            2 + (cut == text.size() ? cut : 0));
  }
  CHECK(whole_chars("") == 0);
  // Invalid UTF-8 is not cut, so that a later check sees it.
  CHECK(whole_chars("\x80\x80\x80\x80") == 4);
}

TEST_CASE("names: may_repeat is true where hashes are the same") {
  CHECK(!may_repeat({}));
  CHECK(!may_repeat({0, UINT64_MAX, 1, UINT64_MAX - 1}));
  std::vector<uint64_t> hashes;
  for (uint64_t i = 0; i < 5000; ++i)
    hashes.push_back(hash_of("layers." + std::to_string(i)));
  CHECK(!may_repeat(hashes));
  hashes.push_back(hashes[1234]);
  CHECK(may_repeat(hashes));
  CHECK(may_repeat(std::vector<uint64_t>(3, 7)));
}

}  // namespace ckpt::text
