// SPDX-License-Identifier: Apache-2.0
// Flat buffers as megatron-core itself laid them out: the goldens' case.json
// lists where each parameter was, bucket by bucket.
#include "formats/megatron/state/buffers.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "formats/megatron/model/module_order.h"
#include "formats/megatron/state/bucket_key.h"

namespace ckpt::megatron {
namespace {

struct Golden {
  const char* path;
  std::optional<uint64_t> bucket_size;  // of the first stage's first chunk
  uint64_t stage = 1000;                // dp groups of a pipeline stage
  bool shared = false;                  // a tied model of several stages
  uint64_t divisor = 128;
};

struct Listed {
  std::vector<BufferParam> params;  // in the order of the buffer
  std::vector<BufferSlot> slots;
};

std::map<std::pair<uint64_t, uint64_t>, Listed> read_layout(
    const Golden& golden) {
  std::ifstream file(std::string(CKPT_TEST_DATA) + "/" + golden.path +
                     "/case.json");
  const nlohmann::json about = nlohmann::json::parse(file);
  std::map<std::pair<uint64_t, uint64_t>, Listed> all;
  for (const auto& slot : about.at("bucket_layout")) {
    Listed& buffer = all[{slot.at("dp_group"), slot.at("buffer")}];
    const uint64_t begin = slot.at("start"), end = slot.at("end");
    const std::string name = slot.at("model_key");
    buffer.params.push_back(
        {end - begin,
         golden.shared && name == "embedding.word_embeddings.weight"});
    buffer.slots.push_back({slot.at("bucket"), begin, end});
  }
  return all;
}

std::vector<BufferParam> sizes(std::initializer_list<uint64_t> numels) {
  std::vector<BufferParam> params;
  for (const uint64_t numel : numels) params.push_back({numel, false});
  return params;
}

}  // namespace

TEST_CASE("buffers: as megatron-core laid them out") {
  const Golden goldens[] = {
      {"megatron_torch_dist/gpt_optim_dp_reshardable_v0161", {}},
      {"megatron_torch_dist/gpt_optim_tied_buckets_tp2_pp2_v0161", 300, 2,
       true},
      {"megatron_torch_dist/gpt_optim_qknorm_vpp2_v0161", {}, 1, true},
      {"megatron_zarr/gpt_zarr_optim_bucket_space_v0090", {}},
      {"megatron_zarr/gpt_zarr_optim_buckets_bias_dp3_v0090",
       {},
       1000,
       false,
       384},
  };
  for (const Golden& golden : goldens) {
    CAPTURE(golden.path);
    for (auto& [buffer, listed] : read_layout(golden)) {
      const auto id = buffer;  // clang 14 can't capture a binding
      CAPTURE(id.first);
      BufferRules rules;
      rules.divisor = golden.divisor;
      if (id.first < golden.stage && id.second == 0)
        rules.bucket_size = golden.bucket_size;
      std::reverse(listed.params.begin(), listed.params.end());
      std::reverse(listed.slots.begin(), listed.slots.end());
      const BufferLayout layout = lay_out_buffer(listed.params, rules);
      REQUIRE(layout.slots.size() == listed.slots.size());
      for (size_t i = 0; i < listed.slots.size(); ++i) {
        CHECK(layout.slots[i].bucket == listed.slots[i].bucket);
        CHECK(layout.slots[i].begin == listed.slots[i].begin);
        CHECK(layout.slots[i].end == listed.slots[i].end);
      }
    }
  }
}

// per_bucket_numel and per_bucket_numel_unpadded in this golden's objects.
TEST_CASE("buffers: lengths of buckets") {
  const Golden golden{
      "megatron_torch_dist/gpt_optim_tied_buckets_tp2_pp2_v0161", 300, 2, true};
  auto all = read_layout(golden);
  const auto lengths = [&](uint64_t group, std::optional<uint64_t> size) {
    auto params = all.at({group, 0}).params;
    std::reverse(params.begin(), params.end());
    std::vector<std::pair<uint64_t, uint64_t>> pairs;
    for (const BufferBucket& bucket :
         lay_out_buffer(params, {.bucket_size = size}).buckets)
      pairs.emplace_back(bucket.unpadded, bucket.padded);
    return pairs;
  };
  using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;
  CHECK(lengths(0, 300) ==
        Pairs{{384, 384}, {352, 384}, {328, 384}, {64, 128}});
  CHECK(lengths(2, {}) == Pairs{{64, 128}, {1224, 1280}});
}

TEST_CASE("buffers: joined buckets, unaligned ones, none") {
  const auto params = sizes({10, 20, 30});
  const BufferLayout aligned = lay_out_buffer(params, {.bucket_size = 25});
  REQUIRE(aligned.buckets.size() == 2);
  CHECK(aligned.joined(aligned.slots[2]) == 0);
  CHECK(aligned.joined(aligned.slots[1]) == 30);
  CHECK(aligned.joined(aligned.slots[0]) == 30 + 64);
  CHECK(aligned.unpadded == 30 + 74);
  CHECK(aligned.padded == 256);
  const BufferLayout packed =
      lay_out_buffer(params, {.bucket_size = {}, .align = false});
  CHECK(packed.slots[0].begin == 50);
  CHECK(packed.unpadded == 60);
  CHECK(lay_out_buffer({}, {}).buckets.empty());
  CHECK(bucket_divisor(3) == 384);
  CHECK(bucket_divisor(256) == 256);
  CHECK(bucket_divisor(3, true) == 196608);
  CHECK_THROWS_AS(lay_out_buffer(sizes({UINT64_MAX, UINT64_MAX}), {}), Error);
}

// Cores up to 0.12, three ranks: 192 is a multiple of three, 64 is not.
TEST_CASE("buffers: the bucket before a shared embedding in old cores") {
  const auto length = [](uint64_t numel) {
    const std::vector<BufferParam> params{{100, true}, {numel, false}};
    return lay_out_buffer(params, {.divisor = 384, .pad_before_shared = 3})
        .buckets.at(0)
        .unpadded;
  };
  CHECK(length(190) == 192);
  CHECK(length(50) == 384);
}

TEST_CASE("bucket keys") {
  const auto key = parse_bucket_key(
      "chained_1.optimizer.distributed.dp_group_idx_3.gbuf_idx_0.dtype_"
      "(torch.bfloat16, torch.float32).bucket_idx_2.exp_avg");
  REQUIRE(key);
  CHECK(key->chain == 1);
  CHECK(key->group == 3);
  CHECK(key->buffer == 0);
  CHECK(key->bucket == 2);
  CHECK(key->param_dtype == "torch.bfloat16");
  CHECK(key->state == "exp_avg");
  for (const char* text :
       {"optimizer.state.exp_avg.decoder.final_layernorm.weight",
        "optimizer.distributed.dp_group_idx_.gbuf_idx_0.dtype_(a, b)."
        "bucket_idx_2.param",
        "optimizer.distributed.dp_group_idx_99999999999999999999.gbuf_idx_0."
        "dtype_(a, b).bucket_idx_2.param",
        "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(a, b)."
        "bucket_idx_2.",
        "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(a, b", ""}) {
    CAPTURE(text);
    CHECK(!parse_bucket_key(text));
  }
}

// The two styles differ in where the input norm is; an unknown module has no
// order.
TEST_CASE("module order") {
  const auto before = [](const char* a, const char* b, OrderStyle style) {
    return order_of(parse_key(a), style)->at(1, 0) <
           order_of(parse_key(b), style)->at(1, 0);
  };
  const char* norm =
      "decoder.layers.self_attention.linear_qkv.layer_norm_weight";
  const char* proj = "decoder.layers.self_attention.linear_proj.weight";
  const char* qkv = "decoder.layers.self_attention.linear_qkv.weight";
  CHECK(before(norm, proj, {.fused_norms = false}));
  CHECK(before(proj, norm, {.fused_norms = true}));
  for (const bool fused : {true, false}) {
    CHECK(before(norm, qkv, {.fused_norms = fused}));
    CHECK(before(proj, qkv, {.fused_norms = fused}));
    CHECK(before("decoder.layers.mlp.linear_fc1.layer_norm_bias",
                 "decoder.layers.mlp.linear_fc1.weight",
                 {.fused_norms = fused}));
  }
  CHECK(before("embedding.word_embeddings.weight", norm, {}));
  // Transformer Engine registers weight0, bias0, weight1, bias1, …
  const auto fc1 = [](const char* word, uint64_t expert, bool grouped) {
    return order_of(parse_key(std::string("decoder.layers.mlp.experts.experts."
                                          "linear_fc1.") +
                              word),
                    {.grouped_experts = grouped})
        ->at(1, expert);
  };
  for (const bool grouped : {true, false}) {
    CHECK(fc1("weight", 0, grouped) < fc1("bias", 0, grouped));
    CHECK(fc1("bias", 0, grouped) < fc1("weight", 1, grouped));
  }
  CHECK(before("decoder.layers.mlp.shared_experts.gate_weight",
               "decoder.layers.mlp.shared_experts.linear_fc1.weight", {}));
  CHECK(before("decoder.final_layernorm.weight", "output_layer.weight", {}));
  CHECK(!order_of(parse_key("decoder.layers.mlp.something.weight"), {}));
  CHECK(!is_parameter(parse_key("decoder.layers.mlp.router.expert_bias")));
}

}  // namespace ckpt::megatron
