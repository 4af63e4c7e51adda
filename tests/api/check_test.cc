// SPDX-License-Identifier: Apache-2.0
#include "ckpt/check.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "lib/hash/digest.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

// verify, diff, digest and facts as calls, on files that PyTorch, transformers
// and fairseq2 wrote.

namespace ckpt {
namespace {

namespace fs = std::filesystem;

const std::string kModel = test::data("hf/qwen3_bf16/ckpt");
const std::string kGrid = test::data("fairseq2_native/llama_tp2dp2_fsdp2");

std::string copy_of(const std::string& source, const test::TempDir& dir) {
  const std::string target = dir.file("copy");
  fs::copy(source, target, fs::copy_options::recursive);
  return target;
}

// Changes the last byte of a file.
void flip_last(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char old = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(old ^ 0x40));
}

std::set<std::string> kinds(const std::vector<Problem>& problems) {
  std::set<std::string> found;
  for (const Problem& problem : problems) found.insert(problem.kind);
  return found;
}

std::set<std::string> kinds(const Comparison& comparison) {
  std::set<std::string> found;
  for (const Difference& difference : comparison.differences)
    found.insert(difference.kind);
  return found;
}

}  // namespace

TEST_CASE("verify: what transformers wrote is whole") {
  uint64_t seen = 0;
  VerifyOptions options;
  options.read.progress = [&](uint64_t done, uint64_t) { seen = done; };
  const Report report = verify(kModel, options);
  CHECK(report.ok);
  CHECK(report.problems.empty());
  CHECK(report.tensors == open(kModel).catalog().tensors.size());
  CHECK(report.bytes > 0);
  CHECK(seen == report.bytes);
}

TEST_CASE("verify: a flipped bit under a manifest, and a lost file") {
  const test::TempDir dir;
  const std::string target = dir.file("out");
  run(open(kModel).catalog(), {.format = "safetensors"}, target);
  CHECK(verify(target).ok);
  flip_last(target + "/model.safetensors");
  const Report bad = verify(target);
  CHECK_FALSE(bad.ok);
  CHECK(kinds(bad.problems).contains("digest"));
  CHECK(verify(target, {.quick = true}).ok);  // no payload was read
  CHECK_THROWS_AS(verify(target, {.deep = true, .quick = true}), Error);
  CHECK_THROWS_AS(verify(dir.file("nothing")), Error);
}

TEST_CASE("verify: a selection is all that is looked at") {
  const Report some =
      verify(kModel, {.selection = {.keys = {"model.norm.weight"}}});
  CHECK(some.ok);
  CHECK(some.tensors == 1);
  CHECK_THROWS_AS(verify(kModel, {.selection = {.keys = {"nobody.*"}}}), Error);
}

TEST_CASE("diff: another topology and format is the same model") {
  const test::TempDir dir;
  const std::string target = dir.file("out");
  run(open(kModel).catalog(),
      {.format = "megatron_torch_dist", .topology = {.tp = 2}}, target);
  const Comparison same = diff(open(kModel).catalog(), open(target).catalog());
  CHECK_MESSAGE(same.same(), same.differences.size());
  CHECK(same.tensors > 0);
}

TEST_CASE("diff: values, facts and what one side lacks") {
  const test::TempDir dir;
  const std::string copy = copy_of(kModel, dir);
  flip_last(copy + "/model.safetensors");
  auto config = test::read_json(copy + "/config.json");
  config["rms_norm_eps"] = 0.25;
  std::ofstream(copy + "/config.json") << config;
  const Catalog before = open(kModel).catalog();
  const Comparison apart = diff(before, open(copy).catalog());
  CHECK_FALSE(apart.same());
  CHECK(kinds(apart) == std::set<std::string>{"fact", "values"});
  const auto values =
      std::ranges::find(apart.differences, "values", &Difference::kind);
  REQUIRE(values != apart.differences.end());
  REQUIRE(values->distance);
  CHECK(values->distance->differing == 1);

  Catalog less = before;
  const Selected selected = select(less, {.exclude = {"model.norm.weight"}});
  CHECK(selected.dropped == 1);
  CHECK(kinds(diff(before, less)) == std::set<std::string>{"only_in_a"});
  CHECK(diff(before, less, {.selection = {.keys = {"*.mlp.*"}}}).same());
}

TEST_CASE("diff: within a tolerance nothing differs, beyond it how far") {
  const test::TempDir dir;
  const std::string target = dir.file("half");
  const Catalog full = open(test::data("hf/qwen2_f32/ckpt")).catalog();
  run(full, {.format = "safetensors"}, target,
      {.dtype = DType::bf16, .naming = {.dialect = "keep"}});
  const Catalog half = open(target).catalog();
  const auto values = [&](const DiffOptions& options) {
    const Comparison found = diff(full, half, options);
    return std::ranges::count(found.differences, "values", &Difference::kind);
  };
  CHECK(values({.rtol = 0.01, .numeric = true}) == 0);
  CHECK(values({.rtol = 1e-6, .numeric = true}) > 0);
  CHECK(kinds(diff(full, half, {.objects = false})).contains("dtype"));
}

TEST_CASE("digest: the same for any sharding, and that of the bytes") {
  const test::TempDir dir;
  const std::string target = dir.file("one");
  const Catalog grid = open(kGrid).catalog();
  run(grid, {.format = "safetensors"}, target, {.naming = {.dialect = "keep"}});
  const auto of_grid = digest(grid);
  const auto of_one = digest(open(target).catalog());
  for (const auto& [name, sum] : of_one) CHECK(of_grid.at(name) == sum);
  for (const auto& [name, tensor] : load_plain_tensors(target))
    CHECK(of_one.at(name) == digest(0, tensor.bytes).hex());
}

TEST_CASE("facts: what config.json says, and where") {
  const auto found = facts(open(kModel).catalog());
  const auto config = test::read_json(kModel + "/config.json");
  REQUIRE(found.contains("norm_epsilon"));
  const auto epsilon = nlohmann::json::parse(found.at("norm_epsilon").value);
  CHECK(epsilon == config.at("rms_norm_eps"));
  CHECK(found.at("norm_epsilon").source == "config.json rms_norm_eps");
}

TEST_CASE("select: layers count anew and the configuration follows") {
  Catalog catalog = open(kModel).catalog();
  const Selected kept = select(catalog, {.layers = "0"});
  CHECK(kept.dropped > 0);
  const test::TempDir dir;
  const std::string target = dir.file("short");
  run(catalog, {.format = "safetensors"}, target);
  CHECK(test::read_json(target + "/config.json").at("num_hidden_layers") == 1);
  CHECK(verify(target).ok);
  CHECK_THROWS_AS(select(catalog, {.layers = "7"}), Error);
}

}  // namespace ckpt
