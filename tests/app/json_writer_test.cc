// SPDX-License-Identifier: Apache-2.0
#include "app/print/json_writer.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace ckpt::app {

TEST_CASE("json writer: escapes what JSON can't hold") {
  struct Row {
    std::string_view text;
    std::string_view json;
  };
  const Row rows[] = {
      {"", R"("")"},
      {"layers.0.w", R"("layers.0.w")"},
      {"a\"b\\c", R"("a\"b\\c")"},
      {"a\nb\tc\x1b[31m", R"("a\nb\tc\u001b[31m")"},
      {std::string_view("\0", 1), R"("\u0000")"},
      {"\x7f", R"("\u007f")"},
      {"a\u202eb\u2028c\u0085", R"("a\u202eb\u2028c\u0085")"},
      {"ünïcode → 漢 😀", R"("ünïcode → 漢 😀")"},
      // A lone surrogate, as Python's "surrogatepass" writes it.
      {"\xed\xa0\x80", R"("\ud800")"},
      // Not UTF-8 at all: Python's "surrogateescape".
      {"\xff", R"("\udcff")"},
      {"a\x80z", R"("a\udc80z")"},
      {"\xc0\xaf", R"("\udcc0\udcaf")"},
      {"\xe2\x82", R"("\udce2\udc82")"},
      {"\xf5\x80\x80\x80", R"("\udcf5\udc80\udc80\udc80")"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    JsonWriter json;
    json.value(row.text);
    CHECK(std::move(json).text() == std::string(row.json) + "\n");
    JsonWriter tree;
    tree.tree({{std::string(row.text), {row.text}}});
    CHECK(std::move(tree).text() == fmt::format("{{{0}:[{0}]}}\n", row.json));
  }
}

TEST_CASE("json writer: objects, arrays and numbers") {
  JsonWriter json;
  json.begin_object();
  json.member("u", std::numeric_limits<uint64_t>::max());
  json.member("i", std::numeric_limits<int64_t>::min());
  json.member("d", 0.5).member("nan", std::numeric_limits<double>::quiet_NaN());
  json.member("t", true).text_or_null("n", "").text_or_null("s", "x");
  json.key("empty").begin_array().end_array();
  json.key("list").begin_array().value(1).begin_object().end_object().null();
  json.end_array();
  json.key("tree").tree({{"a", {1, 2}}});
  json.end_object();
  CHECK(std::move(json).text() ==
        R"({"u":18446744073709551615,"i":-9223372036854775808,"d":0.5,)"
        R"("nan":"nan","t":true,"n":null,"s":"x","empty":[],)"
        R"("list":[1,{},null],"tree":{"a":[1,2]}})"
        "\n");
}

}  // namespace ckpt::app
