// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <map>
#include <random>

#include "ckpt/error.h"
#include "lib/pickle/json.h"
#include "lib/pickle/value.h"
#include "tests/support/pickles.h"

namespace ckpt::pickle {
namespace {

std::string shown(const Document& document, Id id) {
  return to_json(document, id).dump();
}

}  // namespace

TEST_CASE("pickle value: building and reading back") {
  Document document;
  const Id list = document.add_container(Type::kList);
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    document.append(list, document.add_int(i * 1000));
    expected += (i == 0 ? "" : ",") + std::to_string(i * 1000);
  }
  CHECK(shown(document, list) == "[" + expected + "]");
  CHECK(document.items(list).size() == 100);
  CHECK(document.add_int(5) == document.add_int(5));
  CHECK(document.add_string("x") == document.add_string("x"));
  CHECK(document.add_big_int("77") == document.add_int(77));
  CHECK(document.text(document.add_string(std::string(10'000, 'y'))).size() ==
        10'000);

  const Id global = document.add_global("m", "C");
  const Id call = document.add_call(
      global, document.add_container(Type::kTuple, {list, list}));
  document.set(call, "k", list);
  document.append(call, document.add_none());
  document.set_state(call, document.add_bool(true));
  CHECK(document.callable_name(call) == "m C");
  CHECK(document.is_call(call, "m", "C"));
  CHECK(document.call(call).pairs.size() == 2);
  CHECK(document.call(call).items.size() == 1);
  CHECK(document.boolean(document.call(call).state));
}

TEST_CASE("pickle value: wrong ids and types are bugs, not reads") {
  Document document;
  const Id number = document.add_int(1);
  CHECK_THROWS_WITH_AS(document.type(7), "value 7 of a document of 1", Error);
  CHECK_THROWS_WITH_AS(document.text(number), "value 0 is a int, not a text",
                       Error);
  CHECK_THROWS_WITH_AS(document.items(number),
                       "value 0 is a int, not a container", Error);
  CHECK(document.find(number, "x") == kNoId);
  CHECK(document.find(kNoId, "x") == kNoId);
  CHECK_FALSE(document.as_pairs(kNoId));
  CHECK(document.callable_name(kNoId) == "");
  CHECK_FALSE(document.is_global(kNoId, "a", "b"));
}

// Against std::map, over random keys of small and large dicts.
TEST_CASE("pickle value: dict keys are unique, found and kept in order") {
  std::mt19937 random(1);
  for (const int range : {3, 20, 500, 20'000}) {
    Document document;
    const Id dict = document.add_container(Type::kDict);
    std::map<std::string, int> last;
    std::vector<std::string> order;
    for (int i = 0; i < 2 * range; ++i) {
      const std::string key = std::to_string(random() % range);
      if (!last.contains(key)) order.push_back(key);
      last[key] = i;
      document.set(dict, key, document.add_int(i));
    }
    const std::span<const Id> pairs = document.items(dict);
    REQUIRE(pairs.size() == 2 * order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      CHECK(document.text(pairs[2 * i]) == order[i]);
      CHECK(document.integer(pairs[2 * i + 1]) == last[order[i]]);
      CHECK(document.find(dict, order[i]) == pairs[2 * i + 1]);
    }
    CHECK(document.find(dict, "none") == kNoId);
  }
}

// Calls in the order in which they were made need no index. Once anything comes
// between them, they do.
TEST_CASE("pickle value: dicts with calls as keys") {
  std::mt19937 random(4);
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    Document document;
    const Id global = document.add_global("m", "C");
    const Id empty = document.add_container(Type::kTuple);
    const Id dict = document.add_container(Type::kDict);
    std::vector<Id> keys;            // in the order of their first use
    std::map<Id, int64_t> expected;  // equal keys are one id here
    const uint32_t odd = round < 8 ? 0 : 1u << (random() % 8);
    for (int64_t i = 0; i < 200; ++i) {
      Id key = document.add_call(global, empty);
      if (odd != 0 && random() % 256 < odd)
        key = random() % 2
                  ? document.add_string(std::to_string(i % 30))
                  : static_cast<Id>(dict + 1 +
                                    random() % (document.size() - dict - 1));
      if (document.type(key) != Type::kCall &&
          document.type(key) != Type::kString)
        continue;
      document.set(dict, key, document.add_int(i));
      if (!expected.contains(key)) keys.push_back(key);
      expected[key] = i;
    }
    const auto pairs = document.items(dict);
    REQUIRE(pairs.size() == 2 * keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      CHECK(pairs[2 * i] == keys[i]);
      CHECK(document.integer(pairs[2 * i + 1]) == expected[keys[i]]);
      if (document.type(keys[i]) == Type::kString)
        CHECK(document.integer(document.find(dict, document.text(keys[i]))) ==
              expected[keys[i]]);
    }
    CHECK(document.find(dict, "absent") == kNoId);
  }
}

TEST_CASE("pickle value: mappings by whatever name") {
  struct Row {
    const char* pickle;
    const char* key;
    int value;
  };
  const Row rows[] = {
      {"(Va\nI1\nd.", "a", 1},
      {"ccollections\nOrderedDict\n)R(Va\nI1\nVb\nI2\nu.", "b", 2},
      {"ccollections\nOrderedDict\n((Va\nI1\nlt\x85R.", "a", 1},
      {"ccollections\nOrderedDict\n((Va\nI1\ntl\x85RVa\nI3\ns.", "a", 3},
      {"ccollections\nOrderedDict\n((Va\nI1\nt(Va\nI4\ntl\x85R.", "a", 4},
      {"ccollections\nCounter\n(Va\nI1\nd\x85R.", "a", 1},
      {"ccollections\ndefaultdict\nc__builtin__\nint\n\x85RVa\nI1\ns.", "a", 1},
  };
  for (const Row& row : rows) {
    CAPTURE(row.pickle);
    const Decoded decoded = test::decode_text(row.pickle);
    const Document& document = *decoded.document;
    const Id found = document.find(document.root(), row.key);
    CHECK(document.as_int(found) == row.value);
    const auto pairs = document.as_pairs(document.root());
    REQUIRE(pairs);
    for (size_t i = 0; i < pairs->size(); i += 2) {
      if (document.text((*pairs)[i]) == row.key)
        CHECK(document.integer((*pairs)[i + 1]) == row.value);
      for (size_t j = 0; j < i; j += 2)
        CHECK(document.text((*pairs)[i]) != document.text((*pairs)[j]));
    }
  }
}

TEST_CASE("pickle value: import keeps sharing, takes substitutes") {
  const Decoded decoded = test::decode_text(
      "](ccollections\nOrderedDict\n)Rq\x01h\x01Va\nI1\ncm\nC\n)Re.");
  const Document& from = *decoded.document;
  const std::span<const Id> items = from.items(from.root());
  REQUIRE(items.size() == 5);
  Document to;
  const Id stand_in = to.add_string("instead");
  const Id root = to.import(from, from.root(), {{items[4], stand_in}});
  CHECK(to.items(root)[0] == to.items(root)[1]);
  CHECK(to.items(root)[4] == stand_in);

  // Two tuples as keys are two keys, whatever is copied first.
  const Decoded tuples = test::decode_text("(I1\n\x85NI2\n\x85Nd.");
  const Document& other = *tuples.document;
  const Id dict = to.import(other, other.root());
  CHECK(test::difference(other, other.root(), to, dict) == "");
}

TEST_CASE("pickle json: what is too much is elided") {
  Document document;
  const Id list = document.add_container(Type::kList);
  const Id inner = document.add_container(Type::kList);
  document.append(inner, list);
  for (int i = 0; i < 10; ++i) document.append(list, document.add_int(i));
  document.append(list, inner);
  CHECK(to_json(document, list, 3).dump() == R"([0,1,2,{"!elided":8}])");
  CHECK(to_json(document, list, 11).dump() ==
        R"([0,1,2,3,4,5,6,7,8,9,[{"!elided":1}]])");
  CHECK(to_json(document, list, 12).dump() ==
        R"([0,1,2,3,4,5,6,7,8,9,[{"!ref":""}]])");
  CHECK(to_json(document, document.add_text(Type::kBytes,
                                            std::string(5000, 'a')))["size"] ==
        5000);
}

TEST_CASE("pickle json: from_json is its inverse for plain JSON") {
  const char* texts[] = {
      "null",
      "true",
      "-7",
      R"("x")",
      "[]",
      "{}",
      "[1,[2,[3]],{}]",
      R"({"a":{"b":[1,2,{"c":null}]},"d":false})",
  };
  for (const char* text : texts) {
    Document document;
    const Id id = from_json(document, nlohmann::json::parse(text));
    CHECK(shown(document, id) == text);
  }
  Document document;
  CHECK(shown(document, from_json(document, nlohmann::json(UINT64_MAX))) ==
        R"({"!int":"18446744073709551615"})");
}

}  // namespace ckpt::pickle
