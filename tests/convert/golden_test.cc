// SPDX-License-Identifier: Apache-2.0
// The family files against models that their peers wrote: every name that the
// rules produce, and no other.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "ckpt/error.h"
#include "convert/config/values.h"
#include "convert/rules/instances.h"
#include "formats/format.h"
#include "lib/io/file.h"

namespace ckpt::families {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

const std::string kData = CKPT_TEST_DATA;

Names names_in(const std::string& path) {
  Names names;
  for (const Tensor& tensor : formats::open(path, "safetensors", {}).tensors)
    names.insert(tensor.name);
  return names;
}

// The tensors of hf as the rules see them.
Names hf_names(const Family& family, const std::string& path) {
  Names names;
  for (const std::string& name : names_in(path))
    if (!Family::ignored(family.normal_name(name), family.hf().ignore) &&
        !family.repeats(name))
      names.insert(family.normal_name(name));
  return names;
}

struct Made {
  Names to, hf;
  bool twice = false;
};

// The names that the rules produce, without the optional tensors that `there`
// lacks.
Made made(const Dialect& dialect, const Numbers& numbers, const Names& there) {
  Made all;
  for (const Instance& one : instances(dialect, numbers)) {
    const bool missing = std::ranges::any_of(
        one.hf, [&](const auto& name) { return !there.contains(name); });
    if (one.rule->optional && missing) continue;
    all.twice = all.twice || !all.to.insert(one.to).second;
    all.hf.insert(one.hf.begin(), one.hf.end());
  }
  return all;
}

std::shared_ptr<const Family> family_of(const Values& config) {
  return Family::for_config(config.values);
}

size_t check_case(const std::string& home, const std::string& weights,
                  const std::vector<std::pair<std::string, std::string>>& all) {
  const Values config = values_of_file(weights, "hf");
  const auto family = family_of(config);
  REQUIRE(family);
  const Names hf = hf_names(*family, weights);
  size_t checked = 0;
  for (const auto& [name, file] : all) {
    const std::string& dialect_name = name;
    if (!io::is_file(home + "/" + file)) continue;
    CAPTURE(dialect_name);
    const Dialect* dialect = family->dialect(dialect_name);
    REQUIRE(dialect);
    const Numbers numbers(family, *dialect, "hf", config.values, "config.json");
    const Made names = made(*dialect, numbers, hf);
    CHECK(!names.twice);
    CHECK(names.to == names_in(home + "/" + file));
    CHECK(names.hf == hf);
    ++checked;
  }
  return checked;
}

TEST_CASE("families: the names of every golden, in every dialect it has") {
  size_t cases = 0;
  size_t checked = 0;
  for (const auto& entry : fs::directory_iterator(kData + "/hf")) {
    const std::string home = entry.path().string();
    CAPTURE(home);
    ++cases;
    checked += check_case(home, home + "/ckpt",
                          {{"mcore", "expected_mcore.safetensors"},
                           {"meta", "expected_meta.safetensors"},
                           {"fairseq2", "expected_fairseq2.safetensors"},
                           {"olmo_core", "expected_olmo_core.safetensors"}});
  }
  CHECK(cases >= 26);
  CHECK(checked >= 30);
}

TEST_CASE("families: OLMo-core's exports, by either side's numbers") {
  for (const char* name :
       {"hf_flex_olmo", "hf_llama", "hf_olmo2", "hf_olmo3", "hf_qwen3"}) {
    CAPTURE(name);
    const std::string home = kData + "/olmo_core_dcp/" + name;
    const std::string weights = home + "/other/hf_f32";
    CHECK(check_case(home, weights, {{"olmo_core", "expected.safetensors"}}) ==
          1);
    const auto family = family_of(values_of_file(weights, "hf"));
    const Dialect* dialect = family->dialect("olmo_core");
    const Values config = values_of_file(home + "/ckpt", "olmo_core");
    const Numbers numbers(family, *dialect, "olmo_core", config.values,
                          "config.json");
    const Made names = made(*dialect, numbers, {});
    CHECK(names.to == names_in(home + "/expected.safetensors"));
    CHECK(names.hf == hf_names(*family, weights));
    // The peer's own config.json, from the same numbers.
    const Json written = values_of_file(weights, "hf").values;
    const Json table = config_table(dialect->hf_config, numbers);
    for (const auto& [field, value] : table.items()) {
      const std::string& key = field;
      if (key == "rope_theta") {
        CHECK(written.at("rope_parameters").at("rope_theta") == value);
      } else if (written.contains(key)) {
        CAPTURE(key);
        CHECK(written.at(key) == value);
      }
    }
  }
}

TEST_CASE("families: numbers survive the way to the dialect's config") {
  for (const auto& entry : fs::directory_iterator(kData + "/hf")) {
    const std::string home = entry.path().string();
    CAPTURE(home);
    const Values config = values_of_file(home + "/ckpt", "hf");
    const auto family = family_of(config);
    for (const Dialect& dialect : family->dialects()) {
      // meta has no field for tied weights: params.json doesn't mention them.
      if (dialect.config.is_null() || dialect.name == "meta") continue;
      if (family->name() == "falcon") continue;  // has no mcore layers
      // fairseq2's Mistral has no field for heads of another size.
      if (home.ends_with("mistral_bf16") && dialect.name == "fairseq2") {
        const Numbers refused(family, dialect, "hf", config.values, "");
        CHECK_THROWS_WITH_AS(instances(dialect, refused),
                             doctest::Contains("heads of another size"), Error);
        continue;
      }
      CAPTURE(dialect.name);
      const Numbers hf(family, dialect, "hf", config.values, "config.json");
      const Numbers there(family, dialect, dialect.name,
                          config_table(dialect.config, hf), "made");
      const Names all = hf_names(*family, home + "/ckpt");
      CHECK(made(dialect, there, all).to == made(dialect, hf, all).to);
      for (const char* name : {"$L", "$H", "$nh", "$ng", "$hd", "$F", "$V"}) {
        CAPTURE(name);
        if (family->name() == "deepseek_v2" || family->name() == "deepseek_v3")
          continue;
        CHECK(hf.eval(name) == there.eval(name));
      }
    }
  }
}

// What the peers' own configurations say, whatever they call each number.
TEST_CASE("families: numbers of checkpoints in other formats") {
  struct Row {
    const char* path;
    const char* family;
    const char* side;
    const char* source;
    std::vector<std::pair<const char*, Json>> numbers;
  };
  const Row rows[] = {
      {"megatron_legacy/llama_te_tp2_pp2/ckpt",
       "llama",
       "mcore",
       "args",
       {{"$L", 3},
        {"$H", 16},
        {"$nh", 8},
        {"$ng", 4},
        {"$hd", 4},
        {"$F", 20},
        {"$V", 30},
        {"$tie", false},
        {"$attnbias", false}}},
      {"fairseq2_native/qwen25_tp4dp1_mixed/ckpt",
       "qwen2",
       "fairseq2",
       "model.yaml",
       {{"$L", 2},
        {"$H", 16},
        {"$nh", 4},
        {"$ng", 4},
        {"$hd", 4},
        {"$F", 24},
        {"$V", 48},
        {"$tie", false}}},
      {"fairseq2_native/legacy046_tp2/ckpt",
       "llama",
       "fairseq2",
       "model.yaml",
       {{"$L", 2},
        {"$H", 16},
        {"$nh", 4},
        {"$ng", 2},
        {"$F", 48},
        {"$V", 40},
        {"$embdim", 1}}},
      {"fairseq2_native/olmo2_tp2dp1/ckpt",
       "olmo2",
       "fairseq2",
       "model.yaml",
       {{"$L", 2}, {"$H", 12}, {"$nh", 3}, {"$F", 10}, {"$windows", false}}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.path);
    const Catalog catalog = formats::open(kData + "/" + row.path, "", {});
    const Values values = values_of(catalog, row.side);
    CHECK(values.source == row.source);
    const auto family = Family::by_name(row.family);
    const Dialect* dialect = family->dialect(row.side);
    REQUIRE(dialect);
    const Numbers numbers(family, *dialect, row.side, values.values,
                          values.source);
    for (const auto& number : row.numbers)
      CHECK_MESSAGE(numbers.eval(number.first) == number.second, number.first);
    Names expected;
    for (const std::string& name : names_in(
             kData + "/" + std::string(row.path) + "/../expected.safetensors"))
      if (!name.ends_with("_extra_state")) expected.insert(name);
    CHECK(made(*dialect, numbers, {}).to == expected);
  }
  const Catalog none = formats::open(kData + "/hf/llama/ckpt", "", {});
  CHECK(values_of(none, "mcore").source.empty());
}

TEST_CASE("families: every file is sound, and reachable by its name") {
  CHECK(Family::names().size() >= 32);
  for (const std::string& name : Family::names()) {
    CAPTURE(name);
    const auto family = Family::by_name(name);
    CHECK(family->name() == name);
    CHECK(!family->dialects().empty());
  }
  CHECK(Family::for_config({{"model_type", "olmo3"}})->name() == "olmo2");
  CHECK(Family::for_config({{"architectures", {"GPT2LMHeadModel"}}})->name() ==
        "gpt2");
  CHECK(Family::for_config({{"model_type", "gemma3"},
                            {"text_config", {{"model_type", "gemma3_text"}}}})
            ->name() == "gemma3");
  CHECK(!Family::for_config({{"model_type", "bert"}}));
  CHECK(!Family::for_config(Json::array()));
}

TEST_CASE("families: fairseq2's names") {
  CHECK(Family::for_fairseq2("qwen", {{"qkv_proj_bias", true}})->name() ==
        "qwen2");
  CHECK(Family::for_fairseq2("qwen", {{"qkv_proj_bias", false}})->name() ==
        "qwen3");
  CHECK(Family::for_fairseq2("olmo", Json::object())->name() == "olmo2");
  CHECK(Family::for_fairseq2("llama", Json::object())->name() == "llama");
  CHECK(!Family::for_fairseq2("nllb", Json::object()));
  CHECK(!Family::for_fairseq2("nothing", Json::object()));
}

}  // namespace
}  // namespace ckpt::families
