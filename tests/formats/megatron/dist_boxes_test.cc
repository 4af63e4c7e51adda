// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <set>

#include "ckpt/error.h"
#include "formats/megatron/dist/boxes.h"
#include "formats/megatron/model/ranks.h"
#include "formats/megatron/model/restack.h"
#include "formats/megatron/model/stack.h"
#include "formats/megatron/model/vocab.h"
#include "tests/support/assemble.h"
#include "tests/support/materialise.h"
#include "tests/support/temp_file.h"

namespace ckpt::megatron {
namespace {

Tensor named(const std::string& name, const Shape& shape, TpRule rule) {
  Tensor tensor;
  tensor.name = name;
  tensor.shape = shape;
  tensor.tp = rule;
  return tensor;
}

std::vector<DistBox> boxes_of(const Tensor& tensor, const DistSplit& split) {
  std::vector<DistBox> boxes;
  each_box(tensor, parse_key(tensor.name), split,
           [&](const DistBox& box) { boxes.push_back(box); });
  return boxes;
}

// Tensors of bytes, one after another in one file.
struct Bytes {
  explicit Bytes(size_t size) : file(content(size)) {
    catalog.files.push_back({.path = file.path, .size = size});
  }
  static std::string content(size_t size) {
    std::string bytes;
    for (size_t i = 0; i < size; ++i)
      bytes.push_back(static_cast<char>(i * 7 + i / 256));
    return bytes;
  }
  // The next elements of the file, cut in two if `halves`.
  Tensor add(const std::string& name, const Shape& shape, bool halves) {
    Tensor tensor;
    tensor.name = name;
    tensor.dtype = DType::u8;
    tensor.shape = shape;
    const uint64_t count = element_count(shape).value();
    const FlatRange all[] = {{0, count / 3}, {count / 3, count}};
    if (halves)
      for (const FlatRange& range : all)
        tensor.pieces.push_back(
            {.box = Box::whole(shape),
             .flat = range,
             .extent = {.offset = at + range.begin, .file = 0}});
    else
      tensor.pieces.push_back(
          {.box = Box::whole(shape), .extent = {.offset = at, .file = 0}});
    at += count;
    return tensor;
  }
  test::TempFile file;
  Catalog catalog;
  uint64_t at = 0;
};

}  // namespace

TEST_CASE("megatron boxes: gated halves, layer by layer") {
  const Tensor fc1 = named("decoder.layers.mlp.linear_fc1.weight", {2, 8, 3},
                           TpRule::split(1, 2));
  const auto boxes = boxes_of(fc1, {.tp = 2});
  REQUIRE(boxes.size() == 8);
  CHECK(boxes[0].box == Box{{0, 0, 0}, {1, 2, 3}});  // gate of rank 0
  CHECK(boxes[1].box == Box{{0, 4, 0}, {1, 2, 3}});  // up of rank 0
  CHECK(boxes[2].box == Box{{0, 2, 0}, {1, 2, 3}});
  CHECK(boxes[2].tp == 1);
  CHECK(boxes[7].box == Box{{1, 6, 0}, {1, 2, 3}});
  CHECK(boxes[7].layer == 1);
}

TEST_CASE("megatron boxes: experts are cut by their own parallelism") {
  const Tensor fc2 =
      named("decoder.layers.1.mlp.experts.experts.linear_fc2.weight", {4, 6, 8},
            TpRule::split(2));
  const auto boxes = boxes_of(fc2, {.tp = 4, .etp = 2, .ep = 2});
  REQUIRE(boxes.size() == 8);
  CHECK(boxes[1].box == Box{{0, 0, 4}, {1, 6, 4}});
  CHECK(boxes[6].expert == 3);
  CHECK(boxes[6].layer == 1);
}

TEST_CASE("megatron boxes: names of nobody keep what they have") {
  Tensor tensor = named("w.grid", {4, 6}, TpRule::split(0));
  tensor.pieces.push_back({.box = {{0, 0}, {4, 2}}});
  tensor.pieces.push_back({.box = {{0, 2}, {4, 4}}});
  CHECK(boxes_of(tensor, {.tp = 4}).size() == 2);
  tensor.pieces.push_back(tensor.pieces[0]);  // a replica, not a partition
  CHECK(boxes_of(tensor, {.tp = 4}).size() == 1);
  CHECK(boxes_of(named("x", {}, {}), {.tp = 4}).size() == 1);
  CHECK(boxes_of(named("decoder.layers.x", {0, 4}, {}), {}).size() == 1);
}

TEST_CASE("megatron boxes: refuses what does not divide") {
  Catalog source;
  source.path = "ckpt";
  source.tensors.push_back(
      named("decoder.layers.self_attention.linear_qkv.weight", {2, 12, 4},
            TpRule::split(1)));
  source.tensors.push_back(named("decoder.layers.mlp.linear_fc1.weight",
                                 {2, 20, 4}, TpRule::split(1, 2)));
  // Rows that were padded for the ranks that are refused.
  source.tensors.push_back(
      named("embedding.word_embeddings.weight", {7, 4}, TpRule::split(0)));
  const KeyList keys = keys_of(source.tensors);
  CHECK_NOTHROW(check_split(source, source.tensors[0], keys[0], {.tp = 6}));
  try {
    check_split(source, source.tensors[1], keys[1], {.tp = 4});
    FAIL("was not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUnfaithful);
    CHECK(error.problem().find("has 20 elements, which 4") !=
          std::string::npos);
    CHECK(error.hint() == "sizes that divide every tensor: 1, 2");
  }
  const Tensor experts =
      named("decoder.layers.mlp.experts.experts.linear_fc2.weight",
            {2, 6, 4, 4}, TpRule::split(3));
  CHECK_THROWS_WITH_AS(
      check_split(source, experts, parse_key(experts.name), {.ep = 4}),
      doctest::Contains("6 experts, which ep=4"), Error);
}

TEST_CASE("megatron stages: layers over a pipeline") {
  Catalog source;
  source.tensors.push_back(
      named("decoder.layers.mlp.linear_fc2.weight", {8, 4, 4}, {}));
  const KeyList keys = keys_of(source.tensors);
  const Key& key = keys[0];
  const Stages stages(source, keys, {}, 4);
  CHECK(stages.of(key, 0) == 0);
  CHECK(stages.of(key, 5) == 2);
  CHECK(stages.of(parse_key("embedding.word_embeddings.weight"), 0) == 0);
  CHECK(stages.of(parse_key("decoder.final_layernorm.weight"), 0) == 3);
  CHECK(stages.of(parse_key("output_layer.weight"), 0) == 3);
  CHECK_THROWS_WITH_AS(Stages(source, keys, {}, 9),
                       doctest::Contains("8 layers of decoder.layers"), Error);
}

TEST_CASE("megatron ranks: each writes about as much") {
  Ranks ranks({.tp = 2, .pp = 2, .dp = 2, .ep = 2}, 2, true);
  CHECK(ranks.count() == 8);
  CHECK(ranks.dense(1, 0, 100) == 1);
  CHECK(ranks.dense(1, 0, 10) == 3);  // the other data-parallel rank
  CHECK(ranks.dense(1, 0, 10) == 3);
  CHECK(ranks.dense(0, 1, 1) == 4);
  CHECK(ranks.expert(1, 1, 1, 1) == 7);
  struct Row {
    Topology topology;
    uint64_t etp;
    bool experts;
    const char* why;
  };
  const Row rows[] = {
      {{.ep = 2}, 1, false, "the model has no experts"},
      {{.dp = 3, .ep = 2}, 1, true, "can't be shared by ep=2"},
      {{.tp = 0}, 1, false, "a topology of no ranks"},
      {{.tp = 2048, .dp = 2048}, 1, false, "more than 1048576 ranks"},
  };
  for (const Row& row : rows)
    CHECK_THROWS_WITH_AS(Ranks(row.topology, row.etp, row.experts),
                         doctest::Contains(row.why), Error);
}

TEST_CASE("megatron vocabulary: padded, never cut") {
  Facts facts;
  facts.vocab_multiple = 8;
  CHECK(padded_rows(24, facts, 2) == 24);
  CHECK(padded_rows(24, facts, 5) == 40);
  CHECK(padded_rows(25, facts, 2) == 32);
  CHECK(padded_rows(129, {}, 2) == 256);
  facts.vocab_multiple = uint64_t{1} << 40;
  CHECK_THROWS_AS(padded_rows(3, facts, uint64_t{1} << 30), Error);

  Bytes bytes(24);
  Catalog& catalog = bytes.catalog;
  catalog.tensors.push_back(
      bytes.add("embedding.word_embeddings.weight", {3, 8}, false));
  facts.vocab_multiple = 2;
  pad_vocabulary(catalog, facts, 2);
  CHECK(catalog.tensors[0].shape == Shape{4, 8});
  CHECK(test::content(catalog, catalog.tensors[0]) ==
        Bytes::content(24) + std::string(8, '\0'));
}

TEST_CASE("megatron stack: layers of one tensor and back") {
  for (const bool halves : {false, true}) {
    Bytes bytes(96);
    Catalog& catalog = bytes.catalog;
    const Tensor a = bytes.add("a", {4, 3, 2}, halves);
    const Tensor b = bytes.add("b", {4, 3, 2}, !halves);
    const Tensor c = bytes.add("c", {4, 3, 2}, halves);
    const Tensor* const parts[] = {&a, &b, &c};
    for (uint32_t axis = 0; axis < 3; ++axis) {
      const Tensor whole = stack(parts, axis);
      CHECK(whole.shape.size() == 4);
      CHECK(whole.shape[axis] == 3);
      for (uint64_t i = 0; i < 3; ++i)
        CHECK(test::assemble(catalog, part(whole, axis, i)) ==
              test::assemble(catalog, *parts[i]));
    }
    CHECK(test::assemble(catalog, stack(parts, 0)) == Bytes::content(72));
    CHECK(test::assemble(catalog, join(parts, 0)) == Bytes::content(72));
    // A part along an inner axis of a tensor that was never stacked.
    const Tensor column = part(a, 1, 2);
    CHECK(column.shape == Shape{4, 2});
    std::string expected;
    for (size_t row = 0; row < 4; ++row)
      expected += Bytes::content(24).substr(row * 6 + 4, 2);
    CHECK(test::assemble(catalog, column) == expected);
  }
}

TEST_CASE("megatron restack: modules become keys, keys become numbers") {
  Bytes bytes(200);
  Catalog& catalog = bytes.catalog;
  for (const char* name :
       {"decoder.layers.0.input_layernorm.weight",
        "decoder.layers.1.input_layernorm.weight",
        "decoder.layers.0.self_attention.linear_qkv.weight",
        "decoder.layers.1.self_attention.linear_qkv.weight",
        "decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.weight",
        "decoder.layers.0.mlp.experts.local_experts.1.linear_fc2.weight",
        "decoder.layers.1.mlp.experts.local_experts.0.linear_fc2.weight",
        "decoder.layers.1.mlp.experts.local_experts.1.linear_fc2.weight"})
    catalog.tensors.push_back(bytes.add(name, {2, 3}, false));
  const auto names = [&] {
    std::vector<std::string> all;
    for (const Tensor& tensor : catalog.tensors) all.push_back(tensor.name);
    return all;
  };
  stack_modules(catalog, {});
  CHECK(names() ==
        std::vector<std::string>{
            "decoder.layers.self_attention.linear_qkv.layer_norm_weight",
            "decoder.layers.self_attention.linear_qkv.weight",
            "decoder.layers.mlp.experts.experts.linear_fc2.weight"});
  CHECK(catalog.tensors[2].shape == Shape{2, 2, 2, 3});
  CHECK(test::assemble(catalog, catalog.tensors[2]) ==
        Bytes::content(48).substr(24));
  number_layers(catalog);
  CHECK(names()[7] ==
        "decoder.layers.1.mlp.experts.experts.1.linear_fc2.weight");
  CHECK(test::assemble(catalog, catalog.tensors[7]) ==
        Bytes::content(48).substr(42));
}

TEST_CASE("megatron restack: refuses gaps and unlike parts") {
  struct Row {
    std::vector<std::pair<const char*, Shape>> tensors;
    const char* why;
  };
  const Row rows[] = {
      {{{"decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.weight",
         {2, 3}},
        {"decoder.layers.0.mlp.experts.local_experts.2.linear_fc2.weight",
         {2, 3}}},
       "expert 1 is missing"},
      {{{"decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.weight",
         {2, 3}},
        {"decoder.layers.0.mlp.experts.local_experts.1.linear_fc2.weight",
         {3, 2}}},
       "can't be stacked with"},
      {{{"decoder.layers.0.mlp.linear_fc2.weight", {2, 3}},
        {"decoder.layers.2.mlp.linear_fc2.weight", {2, 3}}},
       "layer 1 is missing"},
  };
  for (const Row& row : rows) {
    Bytes bytes(100);
    for (const auto& [name, shape] : row.tensors)
      bytes.catalog.tensors.push_back(bytes.add(name, shape, false));
    CHECK_THROWS_WITH_AS(stack_modules(bytes.catalog, {}),
                         doctest::Contains(row.why), Error);
  }
}

TEST_CASE("megatron restack: unlike layers keep their numbers") {
  Bytes bytes(100);
  Catalog& catalog = bytes.catalog;
  catalog.tensors.push_back(
      bytes.add("decoder.layers.0.mlp.linear_fc2.weight", {2, 3}, false));
  catalog.tensors.push_back(
      bytes.add("decoder.layers.1.mlp.linear_fc2.weight", {2, 4}, false));
  stack_modules(catalog, {});
  CHECK(catalog.tensors.size() == 2);
  CHECK(catalog.tensors[1].name == "decoder.layers.1.mlp.linear_fc2.weight");
}

TEST_CASE("megatron restack: halves of a gated layer") {
  Bytes bytes(100);
  Catalog& catalog = bytes.catalog;
  catalog.tensors.push_back(
      bytes.add("decoder.layers.0.mlp.linear_fc1.weight_w", {2, 3}, false));
  catalog.tensors.push_back(
      bytes.add("decoder.layers.0.mlp.linear_fc1.weight_v", {2, 3}, false));
  CHECK(join_gated(catalog));
  REQUIRE(catalog.tensors.size() == 1);
  CHECK(catalog.tensors[0].shape == Shape{4, 3});
  CHECK(test::assemble(catalog, catalog.tensors[0]) == Bytes::content(12));
  CHECK_FALSE(join_gated(catalog));
}

}  // namespace ckpt::megatron
