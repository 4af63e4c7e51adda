// SPDX-License-Identifier: Apache-2.0
// Names, groups and stages of legacy Megatron checkpoints.
#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "formats/megatron/legacy/groups.h"
#include "formats/megatron/legacy/names.h"
#include "formats/megatron/legacy/numbering.h"
#include "formats/megatron/legacy/stages.h"

using namespace ckpt;
using namespace ckpt::megatron;

TEST_CASE("legacy names: layers and experts are found and set") {
  struct Row {
    const char* name;
    int layer, expert;  // -1: none
    bool is_expert;
    const char* moved;  // layer + 10, expert + 20
  };
  const Row rows[] = {
      {"decoder.layers.3.mlp.linear_fc1.weight", 3, -1, false,
       "decoder.layers.13.mlp.linear_fc1.weight"},
      {"decoder.layers.0.mlp.experts.linear_fc2.weight7", 0, 7, true,
       "decoder.layers.10.mlp.experts.linear_fc2.weight27"},
      {"decoder.layers.0.mlp.experts.linear_fc1.bias0", 0, 0, true,
       "decoder.layers.10.mlp.experts.linear_fc1.bias20"},
      {"decoder.layers.1.mlp.experts.local_experts.2.linear_fc1.weight", 1, 2,
       true,
       "decoder.layers.11.mlp.experts.local_experts.22.linear_fc1.weight"},
      {"decoder.layers.1.mlp.experts.linear_fc1._extra_state", 1, -1, true,
       "decoder.layers.11.mlp.experts.linear_fc1._extra_state"},
      {"decoder.layers.1.mlp.shared_experts.linear_fc1.weight", 1, -1, false,
       "decoder.layers.11.mlp.shared_experts.linear_fc1.weight"},
      {"language_model.encoder.layers.4.mlp.dense_h_to_4h.bias", 4, -1, false,
       "language_model.encoder.layers.14.mlp.dense_h_to_4h.bias"},
      // Prediction layers don't belong to the pipeline.
      {"mtp.layers.0.eh_proj.weight", -1, -1, false,
       "mtp.layers.0.eh_proj.weight"},
      {"my_layers.3.weight", -1, -1, false, "my_layers.3.weight"},
      {"decoder.layers.03.x", -1, -1, false, "decoder.layers.03.x"},
      {"decoder.layers.", -1, -1, false, "decoder.layers."},
      {"", -1, -1, false, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const LegacyName parsed = parse_legacy_name(row.name);
    CHECK((parsed.layer ? static_cast<int>(parsed.layer->value) : -1) ==
          row.layer);
    CHECK((parsed.expert ? static_cast<int>(parsed.expert->value) : -1) ==
          row.expert);
    CHECK(parsed.is_expert == row.is_expert);
    CHECK(with_numbers(
              row.name, parsed, parsed.layer ? parsed.layer->value + 10 : 0,
              parsed.expert ? parsed.expert->value + 20 : 0) == row.moved);
  }
}

TEST_CASE("legacy names: cut into the keys of nested dicts") {
  using Path = std::vector<std::string>;
  CHECK(regroup("a.b.layers.12.x", {"a", "b", "layers.3.x"}) ==
        Path{"a", "b", "layers.12.x"});
  CHECK(regroup("decoder.layers.12.x", {"decoder.layers.3.x"}) ==
        Path{"decoder.layers.12.x"});
}

TEST_CASE("legacy names: the embedding for its copy") {
  CHECK(embedding_of_copy("output_layer.weight") ==
        "embedding.word_embeddings.weight");
  CHECK(embedding_of_copy("word_embeddings_for_head.weight") ==
        "language_model.embedding.word_embeddings.weight");
  CHECK_FALSE(embedding_of_copy("output_layer._extra_state"));
  CHECK_FALSE(embedding_of_copy("embedding.word_embeddings.weight"));
}

namespace {

LegacyParam param(std::string name, Dims shape, uint32_t chunk = 0,
                  DType dtype = DType::bf16) {
  LegacyParam made{.name = std::move(name),
                   .chunk = chunk,
                   .dtype = dtype,
                   .shape = std::move(shape)};
  made.expert = parse_legacy_name(made.name).is_expert;
  return made;
}

}  // namespace

TEST_CASE("legacy groups: weight decay, experts, learning rates") {
  const std::vector<LegacyParam> params = {
      param("embedding.word_embeddings.weight", {8, 4}),
      param("decoder.layers.0.self_attention.linear_qkv.bias", {12}),
      param("decoder.layers.0.self_attention.q_layernorm.weight", {4}),
      param("decoder.layers.0.mlp.experts.linear_fc1.weight0", {4, 4}),
      param("output_layer.weight", {8, 4}),
  };
  const auto sizes = [&](const GroupRules& rules) {
    std::vector<size_t> all;
    for (const auto& group : split_groups(params, rules))
      all.push_back(group.size());
    return all;
  };
  using Sizes = std::vector<size_t>;
  GroupRules plain{.groups = {{}, {.no_decay = true}}};
  CHECK(sizes(plain) == Sizes{3, 2});
  plain.decay_qk_norms = true;
  CHECK(sizes(plain) == Sizes{4, 1});
  CHECK(sizes({.groups = {{}, {.no_decay = true}, {.expert = true}}}) ==
        Sizes{2, 2, 1});
  CHECK(sizes({.groups = {{.decoupled = true}, {}, {.no_decay = true}}}) ==
        Sizes{2, 1, 2});
  // No group takes vectors here, so they are left out.
  CHECK(sizes({.groups = {GroupTraits{}}}) == Sizes{3});
}

TEST_CASE("legacy groups: one optimizer, two, one for each chunk") {
  const std::vector<LegacyParam> dense = {param("a.weight", {2, 2}, 0),
                                          param("b.weight", {2, 2}, 1)};
  std::vector<LegacyParam> both = dense;
  both.push_back(
      param("decoder.layers.0.mlp.experts.linear_fc1.weight0", {2, 2}, 1));
  CHECK(split_optimizers(dense, 1, 2)->at(0).size() == 2);
  CHECK(split_optimizers(dense, 2, 2)->at(1)[0].name == "b.weight");
  CHECK(split_optimizers(both, 2, 1)->at(1).size() == 1);
  CHECK(split_optimizers(both, 3, 2)->at(2).size() == 1);
  CHECK_FALSE(split_optimizers(dense, 5, 2));
  CHECK_FALSE(split_optimizers(dense, 0, 2));
}

TEST_CASE("legacy groups: buffers by chunk and dtype") {
  const std::vector<LegacyParam> params = {
      param("a.weight", {2, 2}, 0), param("b.weight", {2, 2}, 1),
      param("c.weight", {2, 2}, 0, DType::f32), param("d.weight", {2}, 0)};
  const auto buffers = split_buffers(params);
  REQUIRE(buffers.size() == 3);
  CHECK(buffers[0].params.size() == 2);
  CHECK(buffers[1].dtype == DType::f32);
  CHECK(buffers[2].chunk == 1);
}

namespace {

std::vector<LegacyKey> keys_of(uint64_t layers, const char* stack) {
  std::vector<LegacyKey> keys;
  const auto add = [&](std::string name) {
    keys.push_back({.path = {name}, .name = name, .tensor = name});
  };
  add("embedding.word_embeddings.weight");
  for (uint64_t layer = 0; layer < layers; ++layer)
    add(stack + std::to_string(layer) + ".x.weight");
  add("decoder.final_layernorm.weight");
  add("output_layer._extra_state");
  return keys;
}

}  // namespace

TEST_CASE("legacy stages: layers over stages") {
  struct Row {
    uint64_t layers;
    uint32_t pp, vpp;
    uint32_t got_vpp;
    std::vector<uint64_t> each;
  };
  const Row rows[] = {
      {24, 4, 1, 1, {6, 6, 6, 6}}, {8, 2, 2, 2, {2, 2, 2, 2}},
      {6, 2, 2, 1, {3, 3}},  // not divisible into virtual stages
      {8, 1, 2, 1, {8}},     // one stage has none
      {10, 4, 1, 1, {1, 3, 3, 3}}, {7, 3, 1, 1, {1, 3, 3}},
      {5, 4, 1, 1, {2, 1, 1, 1}},
  };
  Facts facts;
  facts.any = true;
  for (const Row& row : rows) {
    CAPTURE(row.layers);
    CAPTURE(row.pp);
    std::string assumption;
    const auto keys = keys_of(row.layers, "decoder.layers.");
    const StageSplit split =
        split_stages({}, facts, keys, row.pp, row.vpp, assumption);
    CHECK(split.vpp == row.got_vpp);
    CHECK(split.layers == row.each);
    CHECK(split.first_stage.has_value() ==
          (row.each.size() > 1 && row.each[0] != row.each[1]));
    const auto chunks = fill_stages(keys, split, row.pp, row.pp > 1);
    for (size_t i = 0; i < chunks.size(); ++i) {
      size_t extra = i == 0 ? 1 : 0;
      if (i + 1 == chunks.size()) extra += row.pp > 1 ? 3 : 2;
      CHECK(chunks[i].size() == row.each[i] + extra);
    }
    if (row.pp == 1) continue;
    // The copy of the embedding is where its module is.
    const auto& last = chunks.back();
    CHECK(last[last.size() - 2].name == "output_layer.weight");
    CHECK(last[last.size() - 2].tensor == "embedding.word_embeddings.weight");
  }
}

TEST_CASE("legacy stages: refuses, and says why") {
  Facts facts;
  facts.any = true;
  std::string assumption;
  const auto keys = keys_of(3, "decoder.layers.");
  CHECK_THROWS_WITH_AS(split_stages({}, facts, keys, 4, 1, assumption),
                       doctest::Contains("3 layers for 4 pipeline stages"),
                       Error);
  const auto old = keys_of(3, "language_model.encoder.layers.");
  CHECK_THROWS_WITH_AS(split_stages({}, facts, old, 2, 1, assumption),
                       doctest::Contains("2 equal pipeline stages"), Error);
}
