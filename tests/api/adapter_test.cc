// SPDX-License-Identifier: Apache-2.0
#include "ckpt/adapter.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "ckpt/error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

constexpr char kGolden[] = "runs/hf_trainer_lora/ckpt/checkpoint-4";

ShardedTensor shard(const std::string& name, Shape shape,
                    const std::vector<float>& values) {
  return {.name = name,
          .dtype = DType::f32,
          .shape = shape,
          .box = Box::whole(shape),
          .bytes = std::as_bytes(std::span(values))};
}

std::vector<float> floats(const TensorData& data) {
  std::vector<float> values(data.bytes.size() / sizeof(float));
  std::memcpy(values.data(), data.bytes.data(), data.bytes.size());
  return values;
}

}  // namespace

TEST_CASE("adapter: what peft saved is described") {
  const Catalog adapter = open(test::data(kGolden)).catalog();
  const auto said = adapter_of(adapter);
  REQUIRE(said);
  CHECK(said->kind == "LORA");
  CHECK(said->names == "peft");
  CHECK(said->rank == 4);
  CHECK(said->alpha == 8);
  CHECK(said->saved == std::vector<std::string>{"lm_head"});
  CHECK(adapter_dialect(adapter) == "hf");
  CHECK_FALSE(has_adapter_inside(adapter));
  CHECK_FALSE(adapter_of(open(test::data("hf/llama/ckpt")).catalog()));
}

TEST_CASE("adapter: of another base is refused") {
  Catalog base = open(test::data("safetensors/hf_sharded/ckpt")).catalog();
  CHECK_THROWS_AS((void)add_adapters(base, {{.path = test::data(kGolden)}}),
                  Error);
}

// W + weight * alpha / rank * B A, by hand.
TEST_CASE("adapter: sums, and holds what they are made of") {
  const test::TempDir temp;
  const std::vector<float> weight{1, 2, 3, 4, 5, 6}, a{1, 10, 100}, b{1, 2};
  const std::string base_path = temp.path + "/base.safetensors";
  save(std::vector{shard("m.weight", {2, 3}, weight)},
       {.format = "safetensors", .single_file = true}, base_path);
  std::filesystem::create_directory(temp.path + "/lora");
  const std::string factors = temp.path + "/lora/adapter_model.safetensors";
  save(std::vector{shard("base_model.model.m.lora_A.weight", {1, 3}, a),
                   shard("base_model.model.m.lora_B.weight", {2, 1}, b)},
       {.format = "safetensors", .single_file = true}, factors);
  std::ofstream(temp.path + "/lora/adapter_config.json")
      << R"({"peft_type": "LORA", "r": 1, "lora_alpha": 2})";

  Catalog base = open(base_path).catalog();
  std::vector<std::string> said;
  AdapterHold held = add_adapters(
      base, {{.path = temp.path + "/lora", .weight = 0.5}},
      {.note = [&](const Problem& problem) { said.push_back(problem.kind); }});
  CHECK_FALSE(said.empty());
  CHECK(floats(Checkpoint(base).read("m.weight")) ==
        std::vector<float>{2, 12, 103, 6, 25, 206});

  const std::string out = temp.path + "/out.safetensors";
  run(base, {.format = "safetensors", .single_file = true}, out);
  held.reset();
  CHECK(floats(open(out).read("m.weight")) ==
        std::vector<float>{2, 12, 103, 6, 25, 206});

  Catalog other = open(base_path).catalog();
  held = add_adapters(other, {{.path = temp.path + "/lora"}}, {.alpha = 1});
  CHECK(floats(Checkpoint(other).read("m.weight")) ==
        std::vector<float>{2, 12, 103, 6, 25, 206});
}

}  // namespace ckpt
