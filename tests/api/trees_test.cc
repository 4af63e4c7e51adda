// SPDX-License-Identifier: Apache-2.0
#include "ckpt/trees.h"

#include <doctest/doctest.h>

#include "ckpt/ckpt.h"
#include "lib/pickle/value.h"
#include "lib/pickle/whole_json.h"

// The expected lists are what megatron-core's dict_utils returns for the same
// dicts: diff, merge (lists of equal length, no leaf twice).

namespace ckpt {
namespace {

Object tree(const std::string& json) { return object_from_json("t", json); }

std::string told(const TreeDifference& difference) {
  std::string text;
  for (const std::string& path : difference.only_left) text += "-" + path + " ";
  for (const std::string& path : difference.only_right)
    text += "+" + path + " ";
  for (const auto& mismatch : difference.mismatching)
    text += mismatch.path + ":" + mismatch.left + "/" + mismatch.right + " ";
  return text;
}

}  // namespace

TEST_CASE("trees: diff") {
  struct Row {
    const char* left;
    const char* right;
    const char* expected;
  };
  const Row rows[] = {
      {R"({"a":1,"b":[1,{"c":null}]})", R"({"b":[1,{"c":null}],"a":1})", ""},
      {R"({"a":1})", R"({"b":1})", "-a +b "},
      {R"({"a":{"x":1,"y":2}})", R"({"a":{"x":1.5,"z":2}})",
       "-a.y +a.z a.x:int/float "},
      {R"([1,2,3])", R"([1,5])", "-2 1:int/int "},
      {R"([1])", R"([1,2,3])", "+1 +2 "},
      {R"({"a":[]})", R"({"a":{}})", "a:list/dict "},
      {R"({"a":1})", R"({"a":1.0})", ""},  // as Python compares
      {R"({"a":true})", R"({"a":1})", ""},
      {R"({"a":"1"})", R"({"a":1})", "a:str/int "},
      {R"({"1":1})", R"({"1":2})", "1:int/int "},
      {"3", "4", ":int/int "},
  };
  for (const Row& row : rows) {
    CAPTURE(row.left);
    CAPTURE(row.right);
    CHECK(told(diff_trees(tree(row.left), tree(row.right))) == row.expected);
  }
}

TEST_CASE("trees: long bytes are compared to the end") {
  Catalog catalogs[2];
  for (int i = 0; i < 2; ++i) {
    auto document = std::make_shared<pickle::Document>();
    std::string bytes(10'000, 'x');
    bytes.back() = i == 0 ? 'a' : 'b';
    Object object{.name = "rng"};
    object.node = document->add_text(pickle::Type::kBytes, bytes);
    object.document = std::move(document);
    catalogs[i].objects.push_back(std::move(object));
  }
  CHECK(diff_objects(catalogs[0], catalogs[0]).empty());
  CHECK(diff_objects(catalogs[0], catalogs[1]).size() == 1);
}

TEST_CASE("trees: merge") {
  struct Row {
    const char* left;
    const char* right;
    const char* expected;  // JSON, or "error: …"
  };
  const Row rows[] = {
      {R"({"a":1})", R"({"b":2})", R"({"a":1,"b":2})"},
      {R"({"a":{"x":1}})", R"({"a":{"y":[2]},"c":null})",
       R"({"a":{"x":1,"y":[2]},"c":null})"},
      {R"([{"a":1},{"b":1}])", R"([{"b":2},{"a":2}])",
       R"([{"a":1,"b":2},{"b":1,"a":2}])"},
      {R"({"a":[]})", R"({"a":[]})", R"({"a":[]})"},
      {R"({"a":1})", R"({"a":1})", "error: a: both trees have it"},
      {R"({"a":{"b":1}})", R"({"a":{"b":{}}})",
       "error: a.b: both trees have it: a int and a dict"},
      {R"({"a":[1,2]})", R"({"a":[1]})",
       "error: a: a list of 2 and one of 1 elements"},
      {R"({"a":[{}]})", R"({"a":{}})", "error: a: both trees have it"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.left);
    CAPTURE(row.right);
    const std::string expected = row.expected;
    if (expected.starts_with("error: "))
      CHECK_THROWS_WITH_AS(merge_trees(tree(row.left), tree(row.right)),
                           doctest::Contains(expected.substr(7).c_str()),
                           Error);
    else
      CHECK(json_of(merge_trees(tree(row.left), tree(row.right))) == expected);
  }
}

TEST_CASE("trees: what is in one") {
  const auto leaves =
      inspect_types(tree(R"({"a":{"b":1,"c":[true,2.5,"x"]},"d":{},"e":[]})"));
  std::string text;
  for (const TreeLeaf& leaf : leaves) text += leaf.path + ":" + leaf.type + " ";
  CHECK(text == "a.b:int a.c.0:bool a.c.1:float a.c.2:str d:dict e:list ");
  CHECK(inspect_types(tree("[1,2,3]"), 2).size() == 2);
  CHECK_THROWS_AS(tree("{1"), Error);
}

TEST_CASE("object_from_json: integers of any size are integers") {
  for (const std::string digits :
       {"9223372036854775807", "-9223372036854775808", "18446744073709551616",
        "-9223372036854775809", "123456789012345678901234567890"}) {
    CAPTURE(digits);
    CHECK(json_of(tree(digits)) == R"({"!int":")" + digits + "\"}");
    CHECK(inspect_types(tree(digits)).at(0).type == "int");
  }
  CHECK(json_of(tree("1e30")) == R"({"!float":"1e+30"})");
}

TEST_CASE("trees: a program gets values whole, or is told") {
  pickle::Document document;
  const pickle::Id bytes =
      document.add_text(pickle::Type::kBytes, std::string(10'000, '\x01'));
  std::string hex;
  for (int i = 0; i < 10'000; ++i) hex += "01";
  CHECK(pickle::whole_json(document, bytes, "x") ==
        R"({"!bytes":")" + hex + "\"}");
  const std::vector<pickle::Id> many(150'000, document.add_int(7));
  const pickle::Id list = document.add_container(pickle::Type::kList, many);
  CHECK(pickle::whole_json(document, list, "x").size() == 2 * 150'000 + 1);
  pickle::Id nested = list;
  for (int i = 0; i < 100'000; ++i)
    nested = document.add_container(pickle::Type::kList, {nested});
  CHECK_THROWS_WITH_AS(pickle::whole_json(document, nested, "deep"),
                       "deep: values nest more than 200 levels deep", Error);
}

TEST_CASE("object_from_json: canonical JSON comes back as what it was") {
  for (const char* json :
       {R"({"a":[{"!float":"0.5"},{"!float":"nan"}],"b":{"c":1}})",
        R"({"!float":"-inf"})", R"({"!int":"99999999999999999999"})"}) {
    CAPTURE(json);
    CHECK(json_of(object_from_json("x", json)) == json);
  }
  for (const char* json :
       {R"({"a":{"!tuple":[1,2]}})", R"({"!tensor":{}})", R"({"!float":"x"})",
        R"({"!int":""})", R"({"!float":1})", R"({"!float":"1.0","other":2})",
        R"({"a":1,"!tuple":[]})"}) {
    CAPTURE(json);
    CHECK_THROWS_WITH_AS(object_from_json("x", json),
                         doctest::Contains("JSON has no word for"), Error);
  }
}

}  // namespace ckpt
