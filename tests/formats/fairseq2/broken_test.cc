// SPDX-License-Identifier: Apache-2.0
// Goldens with one defect each: the message and the exit class.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>

#include "ckpt/error.h"
#include "formats/fairseq2/fairseq2.h"
#include "formats/fairseq2/model_yaml.h"
#include "formats/fairseq2/scan.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt::fairseq2 {
namespace {

namespace fs = std::filesystem;

using Damage = std::function<void(const std::string&)>;

struct Row {
  std::string name;  // of the golden
  Damage damage;     // done to a copy of its ckpt
  ExitCode code;
  std::string why;
};

// Damages to files below step_N.
Damage remove(const std::string& file) {
  return [file](const std::string& dir) { fs::remove_all(dir + "/" + file); };
}
Damage rename(const std::string& from, const std::string& to) {
  return [from, to](const std::string& dir) {
    fs::rename(dir + "/" + from, dir + "/" + to);
  };
}
Damage swap(const std::string& a, const std::string& b) {
  return [a, b](const std::string& dir) {
    fs::rename(dir + "/" + a, dir + "/aside");
    fs::rename(dir + "/" + b, dir + "/" + a);
    fs::rename(dir + "/aside", dir + "/" + b);
  };
}
Damage copy(const std::string& from, const std::string& to) {
  return [from, to](const std::string& dir) {
    fs::create_directories(fs::path(dir + "/" + to).parent_path());
    fs::copy(
        dir + "/" + from, dir + "/" + to,
        fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  };
}
Damage foreign(const std::string& golden, const std::string& to) {
  return [golden, to](const std::string& dir) {
    fs::copy_file(test::data("fairseq2_native/" + golden), dir + "/" + to,
                  fs::copy_options::overwrite_existing);
  };
}
Damage truncate(const std::string& file) {
  return [file](const std::string& dir) {
    fs::resize_file(dir + "/" + file, fs::file_size(dir + "/" + file) / 2);
  };
}
Damage write(const std::string& file, const std::string& text) {
  return [file, text](const std::string& dir) {
    std::ofstream(dir + "/" + file) << text;
  };
}

TEST_CASE("fairseq2: one defect, one message") {
  const std::string model = "model/pp_00/tp_00/";
  const std::string qwen3 = "qwen3_dp3_uneven_fsdp2";
  const Row rows[] = {
      {qwen3, remove(model + "sdp_01.pt"), ExitCode::kDamaged,
       "sdp_01.pt is missing, but sdp_02.pt is there"},
      {qwen3, remove(model + "sdp_00.pt"), ExitCode::kDamaged,
       "sdp_00.pt is missing, but sdp_01.pt is there"},
      {qwen3, remove(model + "sdp_02.pt"), ExitCode::kDamaged,
       "decoder_frontend.embed.weight: the files make up [26, 20]"},
      {qwen3, swap(model + "sdp_01.pt", model + "sdp_02.pt"),
       ExitCode::kDamaged,
       "data-parallel rank 1 holds 6 rows; 20 rows over "
       "3 ranks give it 7"},
      {qwen3, rename(model + "sdp_02.pt", model + "sdp_2.pt"),
       ExitCode::kDamaged, "expected sdp_02.pt"},
      {qwen3, truncate(model + "sdp_01.pt"), ExitCode::kDamaged, "sdp_01.pt"},
      {qwen3, write(model + "sdp_01.pt", ""), ExitCode::kDamaged, "sdp_01.pt"},
      {qwen3, copy("optimizer/pp_00/tp_00/sdp_00.pt", model + "sdp_01.pt"),
       ExitCode::kDamaged, "state: a dict, expected a tensor"},
      {qwen3,
       foreign("nllb_tp2dp1/ckpt/step_8/model/pp_00/tp_00/sdp_00.pt",
               model + "sdp_01.pt"),
       ExitCode::kDamaged,
       "encoder_frontend.embed.weight: is not in the sdp_00.pt"},
      {qwen3,
       foreign("qwen3_dp3_uneven_fsdp1/ckpt/step_5/optimizer/pp_00/tp_00/"
               "sdp_01.pt",
               "optimizer/pp_00/tp_00/sdp_01.pt"),
       ExitCode::kDamaged, "exp_avg"},
      {qwen3, remove("optimizer/pp_00/tp_00/sdp_02.pt"), ExitCode::kDamaged,
       "files of pp=1 tp=1 dp=2, the model's are of pp=1 tp=1 dp=3"},
      {qwen3,
       foreign("llama_tp1dp1_bf16/ckpt/step_7/optimizer/pp_00/tp_00/sdp_00.pt",
               "optimizer/pp_00/tp_00/sdp_00.pt"),
       ExitCode::kDamaged, "its parameter groups are not those of"},
      {"llama_tp2dp2_fsdp2", remove("model/pp_00/tp_01/sdp_01.pt"),
       ExitCode::kDamaged, "1 files, pp_00/tp_00 has 2"},
      {"llama_tp2dp2_fsdp2", rename("model/pp_00/tp_01", "model/pp_00/tp_02"),
       ExitCode::kDamaged, "tp_01 is missing, but tp_02 is there"},
      {"llama_tp2dp2_fsdp2",
       foreign("llama_tp1dp1_bf16/other/tp4dp1/step_7/model/pp_00/tp_00/"
               "sdp_00.pt",
               "model/pp_00/tp_01/sdp_00.pt"),
       ExitCode::kDamaged, "decoder_frontend.embed.weight: "},
      {"llama_pp2tp2", remove("model/pp_01/tp_01"), ExitCode::kDamaged,
       "1 tensor-parallel ranks, pp_00 has 2"},
      {"llama_pp2tp2", remove("model/pp_01"), ExitCode::kDamaged,
       "holds 1 layers"},
      {"llama_pp2tp2", rename("model/pp_00", "model/pp_02"), ExitCode::kDamaged,
       "pp_00 is missing, but pp_01 is there"},
      {"llama_pp2tp2",
       copy("model/pp_00/tp_00/sdp_00.pt", "model/pp_01/tp_01/sdp_00.pt"),
       ExitCode::kDamaged, "decoder_frontend.embed.weight: is not in"},
      {"qwen25_tp4dp1_mixed",
       foreign("qwen25_tp4dp1_mixed/other/tp8dp1/step_100/model/pp_00/tp_02/"
               "sdp_00.pt",
               "model/pp_00/tp_02/sdp_00.pt"),
       ExitCode::kDamaged,
       "decoder_frontend.embed.weight: tensor-parallel rank 2 holds bf16 "
       "[6, 16], rank 0 holds bf16 [12, 16]"},
      {"legacy046_tp2", rename("model.1.pt", "model.2.pt"), ExitCode::kDamaged,
       "model.1.pt is missing, but model.2.pt is there"},
      {"legacy046_tp2", copy("rank_0.0.pt", "model.1.pt"), ExitCode::kDamaged,
       "\"model\" with the model's state is missing"},
      {"mistral_tp2dp1", remove("../model.yaml"), ExitCode::kUnfaithful,
       "decoder_frontend.embed.weight: [21, 16] over 2 tensor-parallel ranks "
       "may be split or replicated"},
      {"mistral_tp2dp1", write("../model.yaml", "model_family: mine\n"),
       ExitCode::kUnfaithful, "family 'mine' has no rules for it"},
      {"mistral_tp2dp1", write("../model.yaml", "a: [1, 2"), ExitCode::kDamaged,
       "model.yaml"},
      {"llama_tp2dp1_blocking",
       write("../model.yaml",
             "model_family: llama\nmodel_config:\n  shard_embed_dim: true\n"),
       ExitCode::kDamaged,
       "its width next to the norms' shows a cut along dimension 0, but family "
       "llama"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    CAPTURE(row.why);
    const test::TempDir temp;
    const std::string base = temp.path + "/ckpt";
    fs::copy(test::data("fairseq2_native/" + row.name + "/ckpt"), base,
             fs::copy_options::recursive);
    std::string step;
    for (const auto& entry : fs::directory_iterator(base))
      if (entry.path().filename().string().starts_with("step_"))
        step = entry.path().string();
    row.damage(step);
    try {
      make_reader()->read_catalog(base, {});
      FAIL_CHECK("no error");
    } catch (const Error& e) {
      const std::string what = e.what();
      CAPTURE(what);
      CHECK(e.code() == row.code);
      CHECK(what.find(row.why) != what.npos);
    }
  }
}

TEST_CASE("fairseq2: which step is taken") {
  const test::TempDir temp;
  const std::string base = temp.path + "/ckpt";
  const std::string golden =
      test::data("fairseq2_native/llama_tp1dp1_bf16/ckpt");
  fs::copy(golden, base, fs::copy_options::recursive);
  fs::copy(golden + "/step_7", base + "/step_10", fs::copy_options::recursive);
  fs::copy(golden + "/step_7", base + "/step_99.tmp",
           fs::copy_options::recursive);
  fs::create_directories(base + "/step_50/hg");
  const Found found = locate(base);
  REQUIRE(found.location.has_value());
  CHECK(found.location->step == 10);
  const Catalog catalog = make_reader()->read_catalog(base, {});
  CHECK(catalog.path == base + "/step_10");
  CHECK(catalog.root == base);
  CHECK(catalog.assumptions.at(0) ==
        "step_10: newest of 3 in " + base + " with a model (1 newer without)");
  CHECK(!make_reader()->supports(base + "/step_50").yes);
  CHECK(!make_reader()->supports(golden + "/model.yaml").yes);
}

TEST_CASE("model.yaml: what is refused") {
  std::string deep = "a:";
  for (int i = 0; i < 100; ++i) deep += " [";
  deep += "1" + std::string(100, ']');
  std::string many;
  for (int i = 0; i < 120'000; ++i) many += "- 1\n";
  const std::pair<std::string, std::string> rows[] = {
      {"a: &x [1]\nb: *x\n", "line 2: aliases are not read"},
      {deep, "nested too deep"},
      {many, "over 100,000 values"},
      {"a: 1\na: 2\n", "line 2: a key is there twice"},
      {"a: b: c", "line 1:"},
      {"? [1]\n: 2\n", "line 1: a key is not a scalar"},
      {std::string(17 << 20, '#'), "model.yaml"},
  };
  for (const auto& row : rows) {
    const std::string& text = row.first;
    const std::string& why = row.second;
    CAPTURE(why);
    const test::TempFile file(text, "model.yaml");
    CHECK_THROWS_WITH_AS(read_model_yaml(file.path),
                         doctest::Contains(why.c_str()), Error);
  }
}

TEST_CASE("model.yaml: values, and the fields of 0.4") {
  const test::TempFile file(
      "name: checkpoint\nmodel_family: llama\nmodel_config:\n  _set_:\n"
      "    model_dim: 16\n    vocab_info:\n      size: 40\n      pad_idx: "
      "null\n"
      "    ffn_inner_dim_to_multiple: 8\n    scale: 0.5\n    on: true\n"
      "    text: 'true'\n    list:\n    - 1\n    - a: 2\n    last: x\n",
      "model.yaml");
  const ModelYaml yaml = read_model_yaml(file.path);
  CHECK(yaml.family == "llama");
  std::string all;
  for (const auto& [key, value] : yaml.config)
    all += key + "=" + families::to_string(value) + " ";
  CHECK(all ==
        "ffn_inner_dim_multiple_of=8 last=x list.0=1 model_dim=16 on=true "
        "pad_idx=null "
        "scale=0.5 text=true vocab_size=40 ");
  CHECK(std::holds_alternative<std::string>(yaml.config.at("text")));
}

}  // namespace
}  // namespace ckpt::fairseq2
