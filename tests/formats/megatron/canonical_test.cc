// SPDX-License-Identifier: Apache-2.0
// All spellings of a model's names come out the same.
#include <doctest/doctest.h>

#include <cstring>
#include <map>

#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/megatron/canonical/names.h"
#include "formats/megatron/model/grouped.h"
#include "formats/megatron/model/spelling.h"
#include "tests/support/materialise.h"
#include "tests/support/pickles.h"

using namespace ckpt;
using namespace ckpt::megatron;

namespace {

Catalog names(const std::vector<std::string>& all) {
  Catalog catalog;
  for (const std::string& name : all)
    catalog.tensors.push_back({.name = name, .shape = {2, 2}});
  return catalog;
}

std::set<std::string> odd_names(const Catalog& catalog) {
  return not_canonical(catalog, keys_of(catalog.tensors));
}

Catalog golden(const std::string& name) {
  return formats::open(test::data_path(name), "", {});
}

// Each tensor's bytes.
std::map<std::string, std::string> contents(Catalog& catalog) {
  locate(catalog);
  std::map<std::string, std::string> all;
  for (const Tensor& tensor : catalog.tensors)
    all[tensor.name] = test::content(catalog, tensor);
  return all;
}

}  // namespace

TEST_CASE("canonical: names, one by one") {
  struct Row {
    const char* name;
    bool canonical;
  };
  const Row rows[] = {
      {"embedding.word_embeddings.weight", true},
      {"embedding.position_embeddings.weight", true},
      {"decoder.layers.0.self_attention.linear_qkv.bias", true},
      {"decoder.layers.12.mlp.experts.linear_fc1.weight7", true},
      {"decoder.layers.0.mlp.shared_experts.gate_weight", true},
      {"decoder.layers.0.mlp.router.expert_bias", true},
      {"decoder.layers.0.mlp.linear_fc2.post_layernorm.weight", true},
      {"mtp.layers.0.mtp_model_layer.mlp.linear_fc1.weight", true},
      {"decoder.final_layernorm.bias", true},
      {"output_layer.weight", true},
      {"module.output_layer.weight", false},
      {"decoder.layers.self_attention.linear_qkv.bias", false},
      {"decoder.layers.0.mlp.experts.experts.linear_fc1.weight", false},
      {"decoder.layers.0.mlp.experts.experts.3.linear_fc1.weight", false},
      {"decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight", false},
      {"decoder.layers.0.mlp.experts.weight1", false},
      {"decoder.layers.0.mlp.linear_fc1.weight_w", false},
      {"decoder.layers.0.mlp.linear_fc1._extra_state", false},
      {"mtp.layers.0.transformer_layer.mlp.linear_fc1.weight", false},
      {"optimizer.state.exp_avg.output_layer.weight", false},
      {"language_model.output_layer.weight", false},
      {"model.layers.0.mlp.up_proj.weight", false},
      {"decoder.layers.0.mlp.up_proj.weight", false},
      {"decoder.layers.", false},
      {"", false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    CHECK(is_canonical(row.name, parse_key(row.name)) == row.canonical);
  }
}

TEST_CASE("canonical: what a name means is in its layer") {
  struct Row {
    std::vector<std::string> layer;  // in any spelling
    std::vector<std::string> canonical;
  };
  const std::string at = "decoder.layers.1.";
  const std::string mtp = "mtp.layers.0.";
  const Row rows[] = {
      {{at + "input_layernorm.weight", at + "self_attention.linear_qkv.weight",
        at + "pre_mlp_layernorm.bias", at + "mlp.linear_fc1.weight"},
       {at + "self_attention.linear_qkv.layer_norm_weight",
        at + "self_attention.linear_qkv.weight",
        at + "mlp.linear_fc1.layer_norm_bias", at + "mlp.linear_fc1.weight"}},
      // Experts have a norm of their own, whatever its key is.
      {{at + "mlp.linear_fc1.layer_norm_weight", at + "mlp.router.weight",
        at + "mlp.experts.local_experts.3.linear_fc2.weight",
        at + "mlp.experts.experts.2.linear_fc2.weight"},
       {at + "pre_mlp_layernorm.weight", at + "mlp.router.weight",
        at + "mlp.experts.linear_fc2.weight3",
        at + "mlp.experts.linear_fc2.weight2"}},
      // Latent attention keeps its input norm and names the other ones.
      {{at + "input_layernorm.weight", at + "self_attention.q_layernorm.weight",
        at + "self_attention.kv_layernorm.weight",
        at + "self_attention.linear_q_up_proj.weight",
        at + "self_attention.linear_kv_up_proj.weight"},
       {at + "input_layernorm.weight",
        at + "self_attention.linear_q_up_proj.layer_norm_weight",
        at + "self_attention.linear_kv_up_proj.layer_norm_weight",
        at + "self_attention.linear_q_up_proj.weight",
        at + "self_attention.linear_kv_up_proj.weight"}},
      // They are modules of their own in all layers where one has an indexer.
      {{at + "self_attention.q_layernorm.weight",
        at + "self_attention.linear_kv_up_proj.layer_norm_weight",
        at + "self_attention.linear_q_up_proj.weight",
        at + "self_attention.linear_kv_up_proj.weight",
        "decoder.layers.0.self_attention.core_attention.indexer.k_norm.bias"},
       {at + "self_attention.q_layernorm.weight",
        at + "self_attention.kv_layernorm.weight",
        at + "self_attention.linear_q_up_proj.weight",
        at + "self_attention.linear_kv_up_proj.weight",
        "decoder.layers.0.self_attention.core_attention.indexer.k_norm.bias"}},
      {{at + "self_attention.q_layernorm.weight",
        at + "self_attention.linear_qkv.weight"},
       {at + "self_attention.q_layernorm.weight",
        at + "self_attention.linear_qkv.weight"}},
      {{mtp + "transformer_layer.input_layernorm.weight",
        mtp + "transformer_layer.self_attention.linear_qkv.weight",
        mtp + "enorm.weight"},
       {mtp + "mtp_model_layer.self_attention.linear_qkv.layer_norm_weight",
        mtp + "mtp_model_layer.self_attention.linear_qkv.weight",
        mtp + "enorm.weight"}},
      {{"module.module.output_layer.weight",
        "language_model.encoder.layers.1.self_attention.query_key_value.weight",
        "language_model.encoder.layers.1.input_norm.weight"},
       {"output_layer.weight", at + "self_attention.linear_qkv.weight",
        at + "self_attention.linear_qkv.layer_norm_weight"}},
  };
  for (const Row& row : rows) {
    const Catalog catalog = names(row.layer);
    const Spelling spelling(catalog, keys_of(catalog.tensors));
    for (size_t i = 0; i < row.layer.size(); ++i) {
      CAPTURE(row.layer[i]);
      CHECK(spelling.canonical(row.layer[i], parse_key(row.layer[i])) ==
            row.canonical[i]);
    }
    Catalog same = names(row.canonical);
    CHECK(odd_names(same).empty());
    const Spelling again(same, keys_of(same.tensors));
    for (const std::string& name : row.canonical) {
      const std::string local = again.local(name, parse_key(name));
      CHECK(again.canonical(local, parse_key(local)) == name);
    }
  }
}

TEST_CASE("canonical: two spellings of one tensor are refused") {
  Catalog catalog = names({"decoder.layers.0.self_attention.linear_qkv.weight",
                           "decoder.layers.0.input_layernorm.weight",
                           "decoder.layers.0.self_attention.linear_qkv."
                           "layer_norm_weight"});
  CHECK_THROWS_WITH_AS(to_canonical(catalog), doctest::Contains("two tensors"),
                       Error);
}

TEST_CASE("canonical: sharded keys become layers") {
  Catalog keys = golden("megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt");
  const auto stacked = contents(keys);
  Catalog catalog = golden("megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt");
  to_canonical(catalog);
  CHECK(odd_names(catalog).empty());
  CHECK(catalog.dialect == "mcore");
  const auto layers = contents(catalog);
  CHECK(catalog.tensors.front().name == "embedding.word_embeddings.weight");
  CHECK(catalog.tensors.back().name == "output_layer.weight");
  for (const char* rest :
       {"self_attention.linear_qkv.weight", "mlp.linear_fc1.weight",
        "self_attention.linear_qkv.layer_norm_weight"}) {
    std::string joined;
    for (int layer = 0; layer < 4; ++layer)
      joined += layers.at(fmt::format("decoder.layers.{}.{}", layer, rest));
    CHECK(joined == stacked.at(std::string("decoder.layers.") + rest));
  }
  for (const Object& object : catalog.objects)
    CHECK(object.name.find("_extra_state") == std::string::npos);
}

TEST_CASE("canonical: experts of sharded keys and of ranks' files") {
  for (const char* name : {"megatron_torch_dist/moe_tp1_ep2_pp2_v0161/ckpt",
                           "megatron_torch_dist/"
                           "moe_nonhomogeneous_optim_v0161/ckpt",
                           "megatron_legacy/moe_seq_pp2_ep2_release/ckpt",
                           "megatron_legacy/moe_te_tp2_ep2/ckpt",
                           "megatron_legacy/gpt_local_tied_pp2_vpp2/ckpt",
                           "megatron_legacy/lm_gpt_tp2_fp16/ckpt",
                           "megatron_zarr/gpt_zarr_tp2_pp2_v0090/ckpt"}) {
    CAPTURE(name);
    Catalog catalog = golden(name);
    std::map<std::string, size_t> before, after;
    uint64_t bytes = 0, later = 0;
    for (const Tensor& tensor : catalog.tensors)
      if (tensor.name.find("rng") == std::string::npos)
        bytes += byte_size(tensor);
    to_canonical(catalog);
    for (const Tensor& tensor : catalog.tensors) {
      later += byte_size(tensor);
      if (tensor.kind == Kind::optim && !tensor.param.empty()) {
        CAPTURE(tensor.name);
        const Tensor* param = catalog.find(tensor.param);
        REQUIRE(param != nullptr);
        CHECK(param->shape == tensor.shape);
        CHECK(tensor.name ==
              "optimizer.state." + tensor.state + "." + tensor.param);
      }
    }
    CHECK(later == bytes);
    const auto odd = odd_names(catalog);
    CHECK_MESSAGE(odd.empty(), (odd.empty() ? "" : *odd.begin()));
  }
}

// Two experts, H = 3, F = 2, gated: w1 [3, 2 * 4], w2 [2 * 2, 3]. In order,
// expert e's elements of w1 form a matrix [H, 2F], those of w2 one of [F, H].
TEST_CASE("canonical: experts of the old grouped layer") {
  const std::string layer = "decoder.layers.0.mlp.";
  float first[24], second[12];
  for (int i = 0; i < 24; ++i) first[i] = static_cast<float>(i);
  for (int i = 0; i < 12; ++i) second[i] = static_cast<float>(100 + i);
  Catalog catalog;
  const auto add = [&](const std::string& name, const Shape& shape,
                       const float* data, uint64_t count) {
    catalog.files.push_back(
        {.path = name,
         .size = count * 4,
         .codec = Codec::kMemory,
         .memory = reinterpret_cast<const std::byte*>(data)});
    Tensor& tensor = catalog.tensors.emplace_back();
    tensor.name = name;
    tensor.shape = shape;
    tensor.pieces.push_back(
        {.box = Box::whole(shape),
         .extent = {.file = static_cast<uint32_t>(catalog.files.size() - 1)}});
  };
  add(layer + "router.weight", {2, 3}, first, 6);
  add(layer + "experts.weight1", {3, 8}, first, 24);
  add(layer + "experts.weight2", {4, 3}, second, 12);
  to_canonical(catalog);
  CHECK(odd_names(catalog).empty());
  for (uint64_t e = 0; e < 2; ++e) {
    const Tensor* fc1 =
        catalog.find(fmt::format("{}experts.linear_fc1.weight{}", layer, e));
    const Tensor* fc2 =
        catalog.find(fmt::format("{}experts.linear_fc2.weight{}", layer, e));
    REQUIRE(fc1 != nullptr);
    REQUIRE(fc2 != nullptr);
    CHECK(fc1->shape == Shape{4, 3});
    CHECK(fc2->shape == Shape{3, 2});
    const auto element = [&](const Tensor& tensor, uint64_t i) {
      float value = 0;
      const Extent& extent = tensor.pieces.at(0).extent;
      const Dims strides = extent.strides;
      const uint64_t row = i / tensor.shape[1], column = i % tensor.shape[1];
      std::memcpy(&value,
                  catalog.files[extent.file].memory + extent.offset +
                      row * strides[0] + column * strides[1],
                  4);
      return value;
    };
    for (uint64_t row = 0; row < 4; ++row)
      for (uint64_t column = 0; column < 3; ++column)
        CHECK(element(*fc1, row * 3 + column) ==
              static_cast<float>(e * 12 + column * 4 + row));
    for (uint64_t row = 0; row < 3; ++row)
      for (uint64_t column = 0; column < 2; ++column)
        CHECK(element(*fc2, row * 2 + column) ==
              static_cast<float>(100 + e * 6 + column * 3 + row));
  }
  Catalog odd;
  odd.tensors.push_back({.name = layer + "experts.weight1", .shape = {3, 8}});
  CHECK_THROWS_WITH_AS(split_grouped_experts(odd, {}),
                       doctest::Contains("not known"), Error);
  odd.tensors.push_back({.name = layer + "router.weight", .shape = {5, 3}});
  CHECK_THROWS_WITH_AS(split_grouped_experts(odd, {}),
                       doctest::Contains("5 experts"), Error);
}
