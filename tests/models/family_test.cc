// SPDX-License-Identifier: Apache-2.0
// Family files with mistakes, each reported with its line and column.
#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "convert/rules/instances.h"
#include "tests/support/temp_file.h"

namespace ckpt::families {
namespace {

// A sound family, one field on each line.
const std::string kSound = R"({
"schema": "ckpt-family/2",
"family": "mine",
"hf": {"model_type": ["mine"], "architectures": ["MineForCausalLM"]},
"index": {"l": "$L", "e": "$E"},
"vars": {"$L": {"hf": "layers", "mcore": "num_layers"}, "$E": "2", "$nh": "4"},
"dialects": {"mcore": {"rules": [
{"to": "a.{l}", "hf": ["x.{l}"]},
{"to": "b.{l}.{e}", "hf": ["y.{l}.{e}", "z.{l}.{e}"], "op": "cat"}
]}}
})";

// kSound with `from` replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string text = kSound;
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

constexpr const char* kRule = R"({"to": "a.{l}", "hf": ["x.{l}"]})";

TEST_CASE("family files: mistakes are shown at their place") {
  struct Row {
    std::string text;
    const char* place;  // "line:column"
    const char* why;
  };
  const auto rule = [](const char* json) { return with(kRule, json); };
  const auto vllm = [](const std::string& json) {
    return with("\"index\"", "\"vllm\":" + json + ", \"index\"");
  };
  const auto modelopt = [](const std::string& json) {
    return with("\"index\"", "\"modelopt\":" + json + ", \"index\"");
  };
  const Row rows[] = {
      {"", ":1:1", "JSON ends"},
      {"[1]", ":1:1", "expected an object, found a list"},
      {with("\"mine\",", "\"mine\""), ":4:1", "expected"},
      {with("\"family\"", "\"schema\""), ":3:10", "given twice"},
      {with("family/2", "family/1"), ":2:11", "expected \"ckpt-family/2\""},
      {with("\"mine\",", "\"my family\","), ":3:11", "is a word"},
      {with("\"index\"", "\"indx\""), ":5:9", "unknown field \"indx\""},
      {with("[\"mine\"]", "[7]"), ":4:23", "expected a text, found a number"},
      {with("\"hf\": {", "\"no\": {"), ":4:7", "unknown field \"no\""},
      {with("\"mcore\": {\"r", "\"mcor\": {\"r"), ":7:22",
       "unknown dialect \"mcor\""},
      {with("\"mcore\": \"n", "\"mcora\": \"n"), ":6:42",
       "unknown side \"mcora\""},
      {with("\"$L\": {", "\"L\": {"), ":6:15", "a variable's name"},
      {with("\"2\"", "\"2 +\""), ":6:63", "expected a value at character 4"},
      {with("\"2\"", "\"$E + 1\""), ":6:9", "$E is defined by itself"},
      {with("\"e\": \"$E\"", "\"e\": \"$X\""), ":5:27", "no variable $X"},
      {with("\"l\": \"$L\"", "\"l\": \"e\""), ":5:16",
       "index e has no value here"},
      {with("\"rules\"", "\"rule\""), ":7:32", "unknown field \"rule\""},
      {vllm(R"(true)"), ":5:8", "expected an object"},
      {vllm(R"({"fuse": {}})"), ":5:17", "unknown field \"fuse\""},
      {vllm(R"({"fused": {"kv_proj": ["k", "v"]}})"), ":5:30",
       "vLLM has no module \"kv_proj\""},
      {vllm(R"({"fused": {"qkv_proj": ["q", "k"]}})"), ":5:31",
       "expected 3 names"},
      {vllm(R"({"fused": {"qkv_proj": ["q", "", "v"]}})"), ":5:37",
       "an empty name"},
      {vllm(R"({"names": {"a": 1}})"), ":5:24", "expected a text"},
      {vllm(R"({"names": {"a.": "b"}})"), ":5:25", "ends in a dot"},
      {vllm(R"({"names": {"a": {"to": "b", "how": "up"}}})"), ":5:43",
       "expected \"turned\" or \"row\""},
      {vllm(R"({"experts": {"gate": "g", "up": "u"}})"), ":5:20",
       "\"down\" is missing"},
      {vllm(R"({"tied": 1})"), ":5:17", "expected true or false"},
      {modelopt(R"({"layer": "l."})"), ":5:22", "unknown field \"layer\""},
      {modelopt(R"({"layers": "l"})"), ":5:23", "expected a final dot"},
      {modelopt(R"({"layers": "l."})"), ":5:12", "\"embedding\" is missing"},
      {modelopt(R"({"layers": "l.", "embedding": []})"), ":5:42", "no name"},
      {modelopt(R"({"layers": "l.", "embedding": ["e"], "norm": ["n"],
 "head": ["h"], "attention": ["a", "[b"]})"),
       ":6:36", "["},
      {rule(R"({"hf": ["x.{l}"]})"), ":8:1", "\"to\" is missing"},
      {rule(R"({"to": "a.{l}"})"), ":8:1", "\"hf\" is missing"},
      {rule(R"({"to": "", "hf": ["x"]})"), ":8:8", "an empty name"},
      {rule(R"({"to": "a.{l", "hf": ["x"]})"), ":8:8", "do not match"},
      {rule(R"({"to": "a.{l +}", "hf": ["x"]})"), ":8:8", "expected a value"},
      {rule(R"({"to": "a", "hf": ["x.{l}"]})"), ":8:20",
       "index l has no value here"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "when": "$no"})"), ":8:38",
       "no variable $no"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "when": "e > 1"})"), ":8:38",
       "index e has no value"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "when": true})"), ":8:38",
       "expected a text"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "op": "qvk"})"), ":8:36",
       "unknown operation \"qvk\""},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "op": {"heads": 1}})"), ":8:36",
       "\"name\" is missing"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "op": {"name": "t", "dim": 1}})"),
       ":8:57", "t has no \"dim\""},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "op": "add"})"), ":8:36",
       "add needs \"value\""},
      {rule(
           R"({"to": "a.{l}", "hf": ["x"], "op": {"name": "add", "value": "1"}})"),
       ":8:61", "expected a number"},
      {rule(
           R"({"to": "a.{l}", "hf": ["x"], "op": {"name": "index", "index": "e"}})"),
       ":8:63", "an index that is in \"to\""},
      {rule(
           R"({"to": "a.{l}", "hf": ["x"], "op": {"name": "reshape", "to": ["1"]}})"),
       ":8:36", "\"from\" is missing"},
      {rule(
           R"({"to": "a.{l}", "hf": ["x"], "op": {"name": "cat", "sizes": [-1]}})"),
       ":8:62", "-1 is not between"},
      {rule(R"({"to": "a.{l}", "hf": ["w", "x", "y", "z"], "op": "qkv"})"),
       ":8:23", "not 4 names"},
      {rule(R"({"to": "a.{l}", "hf": ["x", "y"], "op": "qkv_gated"})"), ":8:23",
       "3 names, not 2"},
      {rule(R"({"to": "a.{l}", "hf": ["x", "y"]})"), ":8:23",
       "2 names, but copy takes one"},
      {rule(R"({"to": "a.{l}", "hf": []})"), ":8:23", "made of nothing"},
      {rule(
           R"({"to": "a.{l}", "hf": ["x"], "op": {"name": "const", "value": 1, "shape": ["4"]}})"),
       ":8:23", "const is made of nothing"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "op": ["t", "cat"]})"), ":8:36",
       "cat can only be the first"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "op": "part"})"), ":8:36",
       "part needs \"sizes\""},
      {rule(
           R"({"to": "a.{l}", "hf": ["x"], "op": ["t", {"name": "part", "sizes": [1, 1], "at": 0}]})"),
       ":8:36", "part can only be the first"},
      {rule(R"({"to": "a.{l}", "hf": ["x.{e}"], "each": "e"})"), ":8:23",
       "\"each\" needs cat"},
      {rule(R"({"to": "a.{l}", "hf": ["x", "y"], "op": "qkv_gated"})"), ":8:23",
       "qkv_gated needs q, k and v: 3 names, not 2"},
      {rule(R"({"to": "a.{l}", "hf": ["x", "y", "z"], "op": "kv"})"), ":8:23",
       "kv needs k and v: 2 names, not 3"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "op": "ungroup"})"), ":8:36",
       "ungroup needs \"groups\""},
      {rule(
           R"({"to": "a.{l}", "hf": ["x"], "op": {"name": "ungroup", "groups": 2, "sizes": [[1], [2]]}})"),
       ":8:78", "2 lists for 1 tensors"},
      {rule(
           R"({"to": "a.{l}", "hf": ["x"], "tp": {"dim": 0, "parts": ["$no"]}})"),
       ":8:57", "no variable $no"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "tp": {"dim": 0, "parts": []}})"),
       ":8:56", "an empty list"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "each": "l", "op": "cat"})"),
       ":8:38", "index l is in \"to\" too"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "tp": {"dim": -1}})"), ":8:44",
       "-1 is not between 0 and 15"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "tp": {"parts": 2}})"), ":8:36",
       "\"dim\" is missing"},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "tp": {"dim": 0, "group": "ep"}})"),
       ":8:56", "expected \"etp\""},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "dtype": "F33"})"), ":8:39",
       "unknown dtype \"F33\""},
      {rule(R"({"to": "a.{l}", "hf": ["x"], "optional": 1})"), ":8:42",
       "expected true or false"},
      {with("b.{l}.{e}\", \"hf\": [\"y.{l}.{e}\", \"z.{l}.{e}\"]",
            "a.{l}\", \"hf\": [\"y\", \"z\"]"),
       ":9:1", "has a rule on line 8 already"},
      {with("]}}\n", "], \"config\": {\"n\": \"=$Q\"}}}\n"), ":10:20",
       "no variable $Q"},
      {with("]}}\n",
            "], \"config\": {\"n\": {\"each\": \"q\", \"of\": \"1\"}}}}\n"),
       ":10:29", "no index q"},
      {with("\"rules\": [", "\"ignore\": [\"a[.attn.bias\"], \"rules\": ["),
       ":7:35", "["},
      {with("\"rules\": [", "\"ignore\": [\"tower.*\"], \"rules\": ["), ":7:35",
       "is for rotary frequencies"},
      {with("\"rules\": [", "\"requires\": [\"$E\"], \"rules\": ["), ":7:37",
       "expected a list"},
      {with("\"mcore\": {\"rules\"", "\"fairseq2\": {\"rules\""), ":7:26",
       "\"tp_rules\" is missing"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CAPTURE(row.place);
    try {
      Family::from_text(row.text, "mine.json");
      FAIL_CHECK("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      CHECK(error.where().path == std::string("mine.json") + row.place);
      CHECK_MESSAGE(
          std::string(error.what()).find(row.why) != std::string::npos,
          error.what());
      CHECK(!error.hint().empty());
    }
  }
  CHECK(std::size(rows) > 40);
  CHECK_NOTHROW(Family::from_text(kSound, "mine.json"));
}

struct Model {
  std::shared_ptr<const Family> family = Family::from_text(kSound, "mine.json");
  Numbers numbers(Json values, Overrides overrides = {},
                  const char* side = "hf") const {
    return Numbers(family, *family->dialect("mcore"), side, std::move(values),
                   "config.json", std::move(overrides));
  }
};

TEST_CASE("numbers: from a configuration, or given") {
  const Model model;
  const Numbers numbers = model.numbers({{"layers", 3}});
  CHECK(numbers.count("l") == 3);
  CHECK(numbers.fill("a.{l}.{$L + l}", {{"l", 2}}) == "a.2.5");
  CHECK(numbers.used() ==
        std::vector<std::string>{"layers $L = 3 (config.json layers)"});
  CHECK(instances(numbers.dialect(), numbers).size() == 9);

  const Numbers given = model.numbers({}, {{"L", "1"}, {"nh", "[1]"}});
  CHECK(given.count("l") == 1);
  CHECK(given.eval("$nh") == Json::array({1}));
  CHECK(given.used()[0] == "layers $L = 1 (--set)");
  CHECK(model.numbers({}, {{"num_layers", "2"}}, "mcore").count("l") == 2);
  CHECK(model.numbers(Json(nullptr)).count("l") == 0);
}

TEST_CASE("numbers: what is missing or no number names the way out") {
  const Model model;
  struct Row {
    Json values;
    const char* why;
  };
  const Row rows[] = {
      {{{"layers", -3}}, "is -3, expected a whole number"},
      {{{"layers", 1e300}}, "expected a whole number"},
      {{{"layers", "3"}}, "is \"3\", expected a whole number"},
      {{{"layers", 2.5}}, "is 2.5, expected a whole number"},
      {{{"layers", true}}, "is true, expected a whole number"},
      {{{"layers", UINT64_MAX}}, "expected a whole number"},
      {{{"layers", 100'000'000}}, "more than 4000000 tensors"},
      {{{"layers", 1'999'999}}, "more than 4000000 tensors"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    const Numbers numbers = model.numbers(row.values);
    try {
      instances(numbers.dialect(), numbers);
      FAIL_CHECK("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUnfaithful);
      CHECK_MESSAGE(
          std::string(error.what()).find(row.why) != std::string::npos,
          error.what());
      CHECK(!error.hint().empty());
    }
  }
  try {
    model.numbers({}).whole("$L", {}, "layers");
    FAIL_CHECK("no error");
  } catch (const Error& error) {
    CHECK(error.hint() == "give it: --set L=VALUE");
  }
  CHECK_THROWS_WITH_AS(model.numbers({}, {{"LL", "1"}}),
                       doctest::Contains("have this number"), Error);
}

TEST_CASE("family files: variables that build on each other have an end") {
  std::string chain = "\"$a0\": \"1\"";
  for (int i = 1; i < 40; ++i)
    chain += ", \"$a" + std::to_string(i) + "\": \"$a" + std::to_string(i - 1) +
             "\"";
  CHECK_THROWS_WITH_AS(
      Family::from_text(with("\"$nh\": \"4\"", chain), "mine.json"),
      doctest::Contains("more than 16 deep"), Error);

  // 15 doublings of a value that depends on an index, so nothing is cached.
  chain = "\"$a0\": \"l + 1\"";
  for (int i = 1; i < 16; ++i) {
    const std::string below = "$a" + std::to_string(i - 1);
    chain +=
        ", \"$a" + std::to_string(i) + "\": \"" + below + " + " + below + "\"";
  }
  const auto family =
      Family::from_text(with("\"$nh\": \"4\"", chain), "mine.json");
  const Numbers numbers(family, *family->dialect("mcore"), "hf", Json::object(),
                        "config.json");
  CHECK(numbers.eval("$a5", {{"l", 0}}) == 32);
  CHECK_THROWS_WITH_AS(numbers.eval("$a15", {{"l", 0}}),
                       doctest::Contains("over 10000 variables"), Error);
}

TEST_CASE("family files: of the user") {
  const test::TempFile file(kSound, "mine.json");
  CHECK(Family::from_file(file.path)->name() == "mine");
  CHECK_THROWS_AS(Family::from_file(file.path + ".not"), Error);
  try {
    Family::by_name("lama");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.hint().starts_with("did you mean 'llama'?"));
  }
}

// Each of these is checked against what vLLM makes of it (vllm_models_test.py,
// vllm_peer_test.py): a family must not join them by what it extends.
TEST_CASE("families: those whose arrangement in vLLM is known") {
  const std::vector<std::string> proven = {
      "cohere",     "cohere2",      "deepseek_v2", "deepseek_v3",
      "ernie4_5",   "ernie4_5_moe", "exaone4",     "gemma",
      "gemma2",     "gemma3_text",  "glm4",        "glm4_moe",
      "gpt_oss",    "granite",      "granitemoe",  "granitemoeshared",
      "kimi_k2",    "llama",        "llama4_text", "minimax_m2",
      "ministral3", "mistral",      "mixtral",     "nemotron",
      "olmoe",      "phi3",         "phimoe",      "qwen2",
      "qwen2_moe",  "qwen3",        "qwen3_moe",   "stablelm"};
  CHECK(Family::vllm_types() == proven);
  CHECK(Family::by_name("arcee")->bases().at(0) == "llama");
  CHECK_FALSE(Family::by_name("arcee")->vllm());
  CHECK(Family::for_vllm("arcee") == nullptr);
  const auto granite = Family::for_vllm("granite");
  REQUIRE(granite);
  CHECK(granite->vllm()->fusions.size() == 2);
  const auto nemotron = Family::for_vllm("nemotron");
  REQUIRE(nemotron);
  REQUIRE(nemotron->vllm()->fusions.size() == 1);
  CHECK(nemotron->vllm()->fusions[0].to == "qkv_proj");
}

}  // namespace
}  // namespace ckpt::families
