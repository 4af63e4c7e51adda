// SPDX-License-Identifier: Apache-2.0
#include "models/rules.h"

#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "lib/embedded.h"
#include "models/pattern.h"
#include "tests/support/processor.h"
#include "tests/support/temp_file.h"

namespace ckpt::families {
namespace {

using State = TpRule::State;

TEST_CASE("patterns match whole keys") {
  struct Row {
    const char* pattern;
    const char* key;
    bool matches;
  };
  const Row rows[] = {
      {"final_proj\\.weight", "final_proj.weight", true},
      {"final_proj\\.weight", "final_proj-weight", false},
      {"final_proj\\.weight", "x.final_proj.weight", false},
      {"final_proj\\.weight", "final_proj.weight2", false},
      {".*\\.ffn[12]?\\.inner_proj", "a.ffn.inner_proj", true},
      {".*\\.ffn[12]?\\.inner_proj", "a.ffn2.inner_proj", true},
      {".*\\.ffn[12]?\\.inner_proj", "a.ffn3.inner_proj", false},
      {".*attn\\.(q|k|v)_proj\\.(weight|bias)", "l.0.self_attn.k_proj.bias",
       true},
      {".*attn\\.(q|k|v)_proj\\.(weight|bias)", "l.0.self_attn.o_proj.bias",
       false},
      {"a(b|cd)*e+", "abcdbee", true},
      {"a(b|cd)*e+", "abcd", false},
      {"[a-c]?", "", true},
      {"", "", true},
      {"", "a", false},
      {"x|", "", true},
  };
  for (const Row& row : rows) {
    CAPTURE(row.pattern);
    CAPTURE(row.key);
    CHECK(Pattern(row.pattern).matches(row.key) == row.matches);
  }
}

TEST_CASE("patterns: what is not in the subset is refused") {
  for (const char* text :
       {"(a", "a)", "[a", "*a", "a{2}", "^a", "a$", "\\d", "[^a]", "a\\"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(Pattern{text}, Error);
  }
}

TEST_CASE("family rules: the table of fairseq2 0.8.1") {
  struct Row {
    const char* family;
    Config config;
    const char* key;
    TpRule rule;
  };
  const TpRule whole = TpRule::replicated();
  const Row rows[] = {
      {"llama",
       {{"shard_embed_dim", true}},
       "decoder_frontend.embed.weight",
       TpRule::split(1)},
      {"llama",
       {{"shard_embed_dim", false}},
       "decoder_frontend.embed.weight",
       TpRule::split(0)},
      {"llama",
       {},
       "decoder.layers.11.ffn.output_proj.weight",
       TpRule::split(1)},
      {"llama", {}, "decoder.layers.11.ffn_layer_norm.weight", whole},
      {"qwen", {}, "decoder_frontend.embed.weight", TpRule::split(0)},
      {"qwen", {}, "decoder.layers.0.self_attn.q_norm.weight", whole},
      {"mistral", {}, "final_proj.weight", whole},
      {"nllb",
       {},
       "decoder.layers.0.encoder_decoder_attn.v_proj.bias",
       TpRule::split(0)},
      {"nllb", {}, "decoder.layers.0.ffn.output_proj.bias", whole},
      {"jepa", {}, "encoder.layers.0.self_attn.output_proj.weight", whole},
      {"gemma3n",
       {{"num_layers", int64_t{12}}},
       "decoder.layers.4.ffn.gate_proj.weight",
       TpRule::split(0)},
      {"gemma3n",
       {{"num_layers", int64_t{12}}},
       "decoder.layers.5.ffn.gate_proj.weight",
       whole},
      {"gemma3n",
       {{"num_layers", int64_t{12}}},
       "decoder.layers.11.ffn.output_proj.weight",
       TpRule::split(1)},
      {"gemma3n",
       {{"num_layers", int64_t{12}}},
       "decoder.layers.14.ffn.gate_proj.weight",
       whole},
      {"llama4",
       {{"experts.num_experts", int64_t{8}}},
       "decoder.layers.0.ffn.experts.output_proj",
       TpRule::split(0, 8)},
  };
  for (const Row& row : rows) {
    CAPTURE(row.family);
    CAPTURE(row.key);
    CHECK(Rules::for_family(row.family, row.config, "").tp(row.key) ==
          row.rule);
  }
}

TEST_CASE("family rules: every file compiles, defaults are told") {
  for (const std::string& family : Rules::families()) {
    CAPTURE(family);
    CHECK_NOTHROW(Rules::for_family(family, {}, "test"));
  }
  CHECK(Rules::families().size() >= 13);
  const Rules llama = Rules::for_family("llama", {}, "--family");
  REQUIRE(!llama.assumptions().empty());
  CHECK(llama.assumptions()[0] ==
        "family llama: shard_embed_dim = true, fairseq2's default (no "
        "model.yaml)");
  CHECK(llama.source() == "family llama (--family)");
}

TEST_CASE("family rules: an unknown family gets a suggestion") {
  try {
    Rules::for_family("lama", {}, "--family");
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::kUsage);
    CHECK(e.hint() == "did you mean 'llama'?");
  }
}

TEST_CASE("buffers and tied keys") {
  const Rules rules = Rules::for_family("wav2vec2", {}, "");
  CHECK(rules.buffer("encoder.layers.0.conv.batch_norm.running_var"));
  CHECK(rules.buffer("quantizer.num_updates"));
  CHECK(!rules.buffer("encoder.layers.0.conv.batch_norm.weight"));
  CHECK(Rules::for_family("llama", {{"tied_embeddings", true}}, "")
            .tied()
            .size() == 1);
  CHECK(Rules::for_family("llama", {{"tied_embeddings", false}}, "")
            .tied()
            .empty());
}

TEST_CASE("the user's rules: first match wins, the rest is the family's") {
  const test::TempFile file(
      R"({"z.*.w": 1, "z.*": null, "*embed*": {"dim": 0, "groups": 4}})",
      "rules.json");
  const Rules user = Rules::from_file(file.path);
  CHECK(user.tp("z.1.w") == TpRule::split(1));
  CHECK(user.tp("z.1.b") == TpRule::replicated());
  CHECK(user.tp("decoder_frontend.embed.weight") == TpRule::split(0, 4));
  CHECK(user.tp("final_proj.weight").state == State::kUnknown);
  const Rules both = user.over(Rules::for_family("llama", {}, "x"));
  CHECK(both.tp("z.1.w") == TpRule::split(1));
  CHECK(both.tp("final_proj.weight") == TpRule::split(0));
  CHECK(both.source() == "--shard-dims rules.json, then family llama (x)");
}

TEST_CASE("the user's rules: errors name the key") {
  struct Row {
    const char* json;
    const char* why;
  };
  const Row rows[] = {
      {R"({"a*": -1})", "rule \"a*\": expected a whole number"},
      {R"({"a*": "x"})", "rule \"a*\": expected a whole number"},
      {R"({"a*": 1.5})", "rule \"a*\": expected a whole number"},
      {R"({"a*": {"groups": 2}})", "rule \"a*\": dim is missing"},
      {R"({"a*": {"dim": 0, "groups": 0}})", "rule \"a*\": expected dim"},
      {R"({"a*": {"dim": 0, "x": 0}})", "rule \"a*\": expected dim"},
      {R"([1])", "expected an object"},
      {R"({"a": 1, "a": 2})", "a"},
      {R"({"a[": 1})", "["},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    const test::TempFile file(row.json, "rules.json");
    CHECK_THROWS_WITH_AS(Rules::from_file(file.path),
                         doctest::Contains(row.why), Error);
  }
}

Tensor model_tensor(std::string name, Shape shape) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  return tensor;
}

TEST_CASE("apply: parameters, their state, and foreign names") {
  Catalog catalog;
  catalog.tensors.push_back(model_tensor("final_proj.weight", {8, 4}));
  catalog.tensors.push_back(model_tensor("decoder.layer_norm.weight", {4}));
  for (const auto& [state, shape] :
       std::vector<std::pair<std::string, Shape>>{{"exp_avg", {8, 4}},
                                                  {"step", {}},
                                                  {"row_var", {8, 1}},
                                                  {"col_var", {1, 4}}}) {
    Tensor tensor = model_tensor("final_proj.weight." + state, shape);
    tensor.kind = Kind::optim;
    tensor.param = "final_proj.weight";
    tensor.state = state;
    catalog.tensors.push_back(std::move(tensor));
  }
  const Rules rules = Rules::for_family("llama", {}, "--family");
  CHECK(apply(catalog, rules));
  CHECK(catalog.family == "llama");
  const TpRule expected[] = {TpRule::split(0), TpRule::replicated(),
                             TpRule::split(0), TpRule::replicated(),
                             TpRule::split(0), TpRule{}};
  for (size_t i = 0; i < std::size(expected); ++i) {
    CAPTURE(catalog.tensors[i].name);
    CHECK(catalog.tensors[i].tp == expected[i]);
  }

  Catalog foreign;
  foreign.tensors.push_back(model_tensor("model.norm.weight", {4}));
  CHECK(!apply(foreign, rules));
  CHECK(foreign.tensors[0].tp.state == State::kUnknown);

  catalog.tensors[0].shape = {};
  CHECK_THROWS_WITH_AS(apply(catalog, rules),
                       doctest::Contains("along dimension 0"), Error);
}

TEST_CASE("100,000 keys are matched well within a second") {
  const Rules rules = Rules::for_family("llama", {}, "--family");
  const double start = test::processor_seconds();
  size_t split = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string key =
        "decoder.layers." + std::to_string(i) +
        (i % 2 ? ".ffn.output_proj.weight" : ".ffn_layer_norm.weight");
    if (rules.splits(key)) ++split;
  }
  const double took = test::processor_seconds() - start;
  CHECK(split == 50'000);
  MESSAGE("seconds: " << took);
  CHECK(took < 3);  // 0.05, without a sanitizer
}

}  // namespace
}  // namespace ckpt::families
