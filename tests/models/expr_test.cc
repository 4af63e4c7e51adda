// SPDX-License-Identifier: Apache-2.0
// Expressions. Expectations come from the rules' reference interpreter, in
// Python, unless a row says otherwise.
#include "models/expr.h"

#include <doctest/doctest.h>

#include "ckpt/error.h"

namespace ckpt::families {
namespace {

class Fields : public Expr::Scope {
 public:
  const Json& value(const std::string& name) const override {
    static const Json nothing;
    const auto found = values_.find(name);
    return found == values_.end() ? nothing : *found;
  }

 private:
  Json values_ = {{"n", 32},
                  {"zero", 0},
                  {"half", 0.5},
                  {"text", "abc"},
                  {"list", {0, 1}},
                  {"zeros", {0, 0}},
                  {"empty", Json::array()},
                  {"yes", true},
                  {"no", false},
                  {"a.b", 7},
                  {"$v", 5},
                  {"big", INT64_MAX},
                  {"huge", UINT64_MAX},
                  {"e300", 1e300},
                  {"words", {"x", "y"}}};
};

Json eval(const std::string& text) { return Expr(text).eval(Fields()); }

TEST_CASE("expressions: values") {
  struct Row {
    const char* text;
    Json value;
  };
  const Row rows[] = {
      {"1 + 2 * 3", 7},
      {"(1 + 2) * 3", 9},
      {"10 - 2 - 3", 5},
      {"2 * 6 / 3", 4},
      {"7 % 3", 1},
      {"-7 % 3", 2},
      {"7 % -3", -2},
      {"-n", -32},
      {"- -n", 32},
      {"8 * n / 3.0", 256 / 3.0},
      {"int(8 * n / 3.0)", 85},
      {"int(-1.5)", -1},
      {"5.5 % 2", 1.5},
      {"n == 32", true},
      {"n == 32.0", true},
      {"n != 32", false},
      {"1 < 2 == true", true},
      {"'a' < 'b'", true},
      {"text == 'abc'", true},
      {"missing == null", true},
      {"yes == 1", true},
      {"missing ?? 3", 3},
      {"zero ?? 3", 0},
      {"missing ?? also.missing ?? n", 32},
      {"missing ?? 1 + 1", 2},
      {"no ?? 1", false},
      {"zero || text", true},
      {"empty || missing", false},
      {"yes && list", true},
      {"yes && no || yes", true},
      {"!yes", false},
      {"!missing", true},
      {"!!n", true},
      {"yes ? 1 : 2", 1},
      {"no ? 1 : yes ? 2 : 3", 2},
      {"yes ? no ? 1 : 2 : 3", 2},
      {"missing ? missing / 0 : 4", 4},
      {"a.b", 7},
      {"$v * 2", 10},
      {"has(list, 1)", true},
      {"has(list, 2)", false},
      {"has(missing, 2)", false},
      {"has(words, 'x')", true},
      {"pick(missing, 3)", 1},
      {"pick(list, 1)", 1},
      {"pick(words, 1) == 'y'", true},
      {"pick(4, 8)", 1},
      {"pick(4, 9)", 0},
      {"first1(list)", 1},
      {"first1(missing)", 0},
      {"first1(empty)", 0},
      {"first1(zeros)", 2},
      {"ceil_to(100, 64)", 128},
      {"ceil_to(128, 64)", 128},
      {"ceil_to(0, 64)", 0},
      {"'a text'", "a text"},
      {"null", nullptr},
      {" n ", 32},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(eval(row.text) == row.value);
  }
}

TEST_CASE("expressions: what has no value") {
  struct Row {
    const char* text;
    const char* why;
  };
  const Row rows[] = {
      {"missing + 1", "missing is missing"},
      {"1 - a.missing", "a.missing is missing"},
      {"text * 2", "\"abc\" is not a number"},
      {"yes + 1",
       "true is not a number"},  // Python adds it; no file means that
      {"n / 3", "32 is not divisible by 3"},
      {"n / zero", "32 / 0"},
      {"n % zero", "32 % 0"},
      {"half / zero", "/ 0"},
      {"big + 1", "64 bits do not hold"},
      {"-big - 2", "64 bits do not hold"},
      {"big * 2", "64 bits do not hold"},
      {"huge + 0", "64 bits do not hold"},
      {"int(e300)", "64 bits do not hold"},
      {"int(text)", "\"abc\" is not a number"},
      {"text < 1", "compares what has no order"},
      {"pick(list, 2)", "element 2 of a list of 2"},
      {"pick(list, -1)", "-1 is not an index"},
      {"pick(zero, 2)", "2 % 0"},
      {"pick(1.5, 0)", "neither a list"},
      {"pick(text, 99)", "character 99 of a text of"},
      {"has(n, 'a')", "is not a list"},
      {"ceil_to(n, zero)", "to a multiple of 0"},
      {"ceil_to(-1, 4)", "ceil_to: -1"},
      {"ceil_to(big, 64)", "64 bits do not hold"},
      {"text == 1", "expected a number"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK_THROWS_WITH_AS(eval(row.text), doctest::Contains(row.why), Error);
  }
}

TEST_CASE("expressions: mistakes are shown at their character") {
  struct Row {
    std::string text;
    const char* why;
  };
  const Row rows[] = {
      {"", "expected a value at character 1"},
      {"1 +", "expected a value at character 4"},
      {"1 2", "expected an operator or the end at character 3"},
      {"(1", "expected ')' at character 3"},
      {"a ? b", "expected ':' at character 6"},
      {"'abc", "a text without its closing ' at character 1"},
      {"a = b", "expected a number, a name or a text at character 3"},
      {"a & b", "at character 3"},
      {"$", "expected a name after $ at character 1"},
      {"$1", "expected a name after $"},
      {"pik(a, 1)", "no function pik (did you mean pick?) at character 1"},
      {"has(a)", "has takes 2 arguments, 1 given, at character 6"},
      {"int(1 2)", "expected ',' at character 7"},
      {"99999999999999999999", "64 bits do not hold"},
      {"1..2", "at character 2"},
      {std::string(100, '(') + "1" + std::string(100, ')'), "nested too deep"},
      {std::string(100, '!') + "1", "nested too deep"},
      {std::string(5000, ' ') + "1", "5001 bytes"},
      {"a\xff", "at character 2"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK_THROWS_WITH_AS(Expr{row.text}, doctest::Contains(row.why), Error);
  }
}

TEST_CASE("expressions: names, and long chains") {
  CHECK(Expr("$a ?? b.c + l * b.c == 'd'").names() ==
        std::vector<std::string>{"$a", "b.c", "l"});
  std::string chain = "1";
  while (chain.size() < 4000) chain += "+1";
  CHECK(eval(chain) == Json(static_cast<int64_t>(chain.size() + 1) / 2));
}

}  // namespace
}  // namespace ckpt::families
