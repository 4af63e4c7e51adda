// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/old_names.h"
#include "formats/megatron/model/parts.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/model/sizes.h"
#include "lib/pickle/json.h"

namespace ckpt::megatron {
namespace {

using State = TpRule::State;

// args as a plain dict.
struct Args {
  explicit Args(const char* json) {
    root = pickle::from_json(document, nlohmann::json::parse(json));
  }
  Facts facts() const { return read_facts(document, root, "common.pt"); }
  pickle::Document document;
  pickle::Id root;
};

}  // namespace

TEST_CASE("megatron keys: parts of a name") {
  struct Row {
    const char* text;
    const char* chain;
    const char* state;
    const char* prefix;
    const char* name;
    int layer;   // -1: none, -2: an axis
    int expert;  // likewise
  };
  const Row rows[] = {
      {"decoder.layers.mlp.linear_fc1.weight", "", "", "",
       "decoder.layers.mlp.linear_fc1.weight", -2, -1},
      {"module.decoder.layers.3.mlp.linear_fc1.weight", "", "", "module.",
       "decoder.layers.3.mlp.linear_fc1.weight", 3, -1},
      {"optimizer.state.exp_avg.embedding.word_embeddings.weight", "",
       "exp_avg", "", "embedding.word_embeddings.weight", -1, -1},
      {"chained_1.optimizer.state.param.model.decoder.layers.mlp.experts."
       "experts.linear_fc1.weight",
       "chained_1.", "param", "model.",
       "decoder.layers.mlp.experts.experts.linear_fc1.weight", -2, -2},
      {"decoder.layers.7.mlp.experts.experts.2.linear_fc2.weight", "", "", "",
       "decoder.layers.7.mlp.experts.experts.2.linear_fc2.weight", 7, 2},
      {"decoder.layers.0.mlp.experts.linear_fc1.weight11", "", "", "",
       "decoder.layers.0.mlp.experts.linear_fc1.weight11", 0, 11},
      {"decoder.layers.0.mlp.experts.local_experts.5.linear_fc1.weight", "", "",
       "", "decoder.layers.0.mlp.experts.local_experts.5.linear_fc1.weight", 0,
       5},
      {"decoder.layers.0.mlp.experts.weight1", "", "", "",
       "decoder.layers.0.mlp.experts.weight1", 0, -1},
      {"decoder.layers.mlp.shared_experts.linear_fc1.weight", "", "", "",
       "decoder.layers.mlp.shared_experts.linear_fc1.weight", -2, -1},
      // Not a number as Python prints it, so a word like any other.
      {"decoder.layers.007.x", "", "", "", "decoder.layers.007.x", -2, -1},
      {"decoder.layers.99999999999999999999.x", "", "", "",
       "decoder.layers.99999999999999999999.x", -2, -1},
      {"optimizer.state.", "", "", "", "optimizer.state.", -1, -1},
      {"chained_.optimizer.state.a.b", "", "", "",
       "chained_.optimizer.state.a.b", -1, -1},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const Key key = parse_key(row.text);
    CHECK(key.chain == row.chain);
    CHECK(key.state == row.state);
    CHECK(key.prefix == row.prefix);
    CHECK(key.name == row.name);
    CHECK(key.layer_axis == (row.layer == -2));
    CHECK(key.layer == (row.layer < 0 ? std::optional<uint64_t>()
                                      : static_cast<uint64_t>(row.layer)));
    CHECK(key.expert_axis == (row.expert == -2));
    CHECK(key.expert == (row.expert < 0 ? std::optional<uint64_t>()
                                        : static_cast<uint64_t>(row.expert)));
  }
}

TEST_CASE("megatron keys: objects of a grid") {
  const auto key = parse_object_key("rng_state/shard_0.1_2.3");
  REQUIRE(key);
  CHECK(key->key == "rng_state");
  CHECK(key->offset == std::vector<uint64_t>{0, 1});
  CHECK(key->grid == std::vector<uint64_t>{2, 3});
  CHECK(object_key(key->key, key->offset, key->grid) ==
        "rng_state/shard_0.1_2.3");
  for (const char* wrong :
       {"rng_state", "a/shard_", "a/shard_1_1", "a/shard_0.0_1", "a/shard_0",
        "a/shard_-1_2", "a/shard_x_2", "a/shard_0_2_3", "a/shard_0_0"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_object_key(wrong));
  }
}

TEST_CASE("megatron keys: flat buffers") {
  CHECK(
      is_bucket_key("optimizer.distributed.dp_group_idx_0.gbuf_idx_0."
                    "dtype_(torch.bfloat16, torch.float32).bucket_idx_0."
                    "exp_avg"));
  CHECK_FALSE(is_bucket_key("optimizer.distributed.dp_group_idx_0.optimizer"));
  CHECK_FALSE(is_bucket_key("optimizer.state.exp_avg.x"));
}

TEST_CASE("megatron rules: how ranks share a parameter") {
  struct Row {
    const char* key;
    State state;
    uint32_t dim = 0;
    uint32_t groups = 1;
  };
  const Row rows[] = {
      {"embedding.word_embeddings.weight", State::kSplit, 0},
      {"embedding.position_embeddings.weight", State::kReplicated},
      {"output_layer.weight", State::kSplit, 0},
      {"output_layer.bias", State::kSplit, 0},
      {"decoder.final_layernorm.weight", State::kReplicated},
      {"decoder.layers.self_attention.linear_qkv.weight", State::kSplit, 1},
      {"decoder.layers.3.self_attention.linear_qkv.bias", State::kSplit, 0},
      {"decoder.layers.self_attention.linear_qkv.layer_norm_weight",
       State::kReplicated},
      {"decoder.layers.self_attention.linear_proj.weight", State::kSplit, 2},
      {"decoder.layers.self_attention.linear_proj.bias", State::kReplicated},
      {"decoder.layers.self_attention.q_layernorm.weight", State::kReplicated},
      {"decoder.layers.mlp.linear_fc1.weight", State::kSplit, 1, 2},
      {"decoder.layers.mlp.linear_fc1.bias", State::kSplit, 1, 2},
      {"decoder.layers.0.mlp.linear_fc1.weight_w", State::kSplit, 0, 1},
      {"decoder.layers.0.mlp.linear_fc1.bias_v", State::kSplit, 0, 1},
      {"decoder.layers.mlp.linear_fc2.weight", State::kSplit, 2},
      {"decoder.layers.mlp.linear_fc2.bias", State::kReplicated},
      {"decoder.layers.mlp.router.weight", State::kReplicated},
      {"decoder.layers.mlp.router.expert_bias", State::kReplicated},
      {"decoder.layers.mlp.experts.experts.linear_fc1.weight", State::kSplit, 2,
       2},
      {"decoder.layers.1.mlp.experts.experts.linear_fc2.weight", State::kSplit,
       2},
      {"decoder.layers.1.mlp.experts.linear_fc1.weight7", State::kSplit, 0, 2},
      {"decoder.layers.mlp.shared_experts.linear_fc2.weight", State::kSplit, 2},
      {"decoder.layers.mlp.shared_experts.gate_weight", State::kReplicated},
      {"decoder.layers.0.mixer.in_proj.weight.z", State::kSplit, 0},
      {"decoder.layers.0.mixer.conv1d.bias.B", State::kSplit, 0},
      {"decoder.layers.0.mixer.A_log", State::kSplit, 0},
      {"decoder.layers.0.mixer.norm.weight", State::kSplit, 0},
      {"decoder.layers.0.mixer.out_proj.weight", State::kSplit, 1},
      {"decoder.layers.0.self_attention.in_proj.weight.alpha", State::kSplit,
       0},
      {"decoder.layers.0.self_attention.in_proj.layer_norm_weight",
       State::kReplicated},
      {"decoder.layers.0.self_attention.conv1d.weight.key", State::kSplit, 0},
      {"decoder.layers.0.self_attention.dt_bias", State::kSplit, 0},
      {"decoder.layers.0.self_attention.out_norm.weight", State::kReplicated},
      {"decoder.layers.0.self_attention.out_proj.weight", State::kSplit, 1},
      {"mtp.layers.0.eh_proj.weight", State::kSplit, 0},
      {"mtp.layers.0.enorm.weight", State::kReplicated},
      {"optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight",
       State::kSplit, 1, 2},
      {"decoder.layers.some.thing.weight", State::kUnknown},
  };
  Facts facts;
  facts.gated = true;
  for (const Row& row : rows) {
    CAPTURE(row.key);
    CHECK(tp_rule(row.key, facts) == TpRule{row.state, row.dim, row.groups});
  }
  facts.gated = false;
  CHECK(tp_rule("decoder.layers.mlp.linear_fc1.weight", facts) ==
        TpRule::split(1));
  facts.gated.reset();  // nobody knows
  CHECK(tp_rule("decoder.layers.mlp.linear_fc1.weight", facts) == TpRule{});
}

TEST_CASE("megatron rules: the parts of a mixer by its shapes") {
  using Sizes = std::optional<std::vector<uint64_t>>;
  struct Row {
    std::string module;
    uint64_t input, conv, heads, out;
    Sizes projection, convolution;
  };
  const Row rows[] = {
      {"mixer.", 184, 112, 8, 64, {{64, 64, 24, 24, 8}}, {{64, 24, 24}}},
      {"mamba_mixer.", 92, 56, 4, 32, {{32, 32, 12, 12, 4}}, {{32, 12, 12}}},
      {"self_attention.",
       144,
       88,
       8,
       40,
       {{24, 24, 40, 40, 8, 8}},
       {{24, 24, 40}}},
      {"mixer.", 184, 112, 8, 63, {}, {}},          // out_proj takes another
      {"mixer.", 184, 113, 8, 64, {}, {}},          // no two equal parts
      {"mixer.", 8, 112, 8, 64, {}, {}},            // less than its parts
      {"self_attention.", 88, 144, 8, 40, {}, {}},  // the other way round
      {"self_attention.", ~0ull, 1, ~0ull, 1, {}, {}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.module);
    CAPTURE(row.input);
    const std::string prefix = "decoder.layers.3." + row.module;
    MixerParts parts;
    parts.add(prefix + "in_proj.weight", {row.input, 32});
    parts.add(prefix + "conv1d.weight", {row.conv, 1, 4});
    parts.add(prefix + "A_log", {row.heads});
    parts.add(prefix + "out_proj.weight", {32, row.out});
    CHECK(parts.extents(prefix + "in_proj.weight") == row.projection);
    CHECK(parts.extents(prefix + "conv1d.bias") == row.convolution);
    CHECK(!parts.extents(prefix + "A_log"));
    CHECK(!parts.extents("decoder.layers.4." + row.module + "in_proj.weight"));
  }
}

TEST_CASE("megatron rules: what shapes tell") {
  std::vector<Tensor> tensors(3);
  tensors[0].name = "decoder.layers.mlp.linear_fc1.weight";
  tensors[0].shape = {4, 24, 8};
  tensors[1].name = "decoder.layers.mlp.linear_fc2.weight";
  tensors[1].shape = {4, 8, 12};
  tensors[2].name = "embedding.word_embeddings.weight";
  tensors[2].shape = {16, 8};
  Facts facts;
  infer_facts(tensors, facts);
  CHECK(facts.gated == true);
  CHECK(facts.num_layers == 4);
  CHECK(facts.untied == false);
  tensors[0].shape = {4, 12, 8};
  facts = {};
  infer_facts(tensors, facts);
  CHECK(facts.gated == false);
  tensors[0].shape = {4, 13, 8};
  facts = {};
  infer_facts(tensors, facts);
  CHECK_FALSE(facts.gated);
}

TEST_CASE("megatron facts: what args say") {
  const Args args(R"({"num_layers": 4, "num_attention_heads": 8,
      "num_query_groups": 1, "group_query_attention": false, "swiglu": true,
      "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 3,
      "world_size": 24, "vocab_size": null, "moe_layer_freq": [0, 1]})");
  const Facts facts = args.facts();
  CHECK(facts.num_layers == 4);
  CHECK(facts.num_query_groups == 8);  // the flag is off
  CHECK(facts.gated == true);
  CHECK(facts.numbered_layers == true);
  CHECK_FALSE(facts.vocab_size);
  CHECK(topology_of(facts) == Topology{.tp = 2, .pp = 3, .dp = 4, .ep = 1});
  CHECK_FALSE(Args("[1]").facts().any);
}

TEST_CASE("megatron facts: refuses sizes of no job") {
  CHECK_THROWS_WITH_AS(Args(R"({"num_layers": -1})").facts(),
                       doctest::Contains("args.num_layers is -1"), Error);
  CHECK_THROWS_WITH_AS(
      Args(R"({"tensor_model_parallel_size": 1099511627776})").facts(),
      doctest::Contains("args.tensor_model_parallel_size is 1099511627776"),
      Error);
}

TEST_CASE("megatron facts: args of another topology") {
  Args args(R"({"tensor_model_parallel_size": 2,
      "pipeline_model_parallel_size": 2, "world_size": 8,
      "data_parallel_size": 2, "expert_tensor_parallel_size": 2,
      "virtual_pipeline_model_parallel_size": 2, "padded_vocab_size": 24,
      "unknown": "kept"})");
  const auto changes =
      topology_changes(args.facts(), {.tp = 4, .pp = 1, .dp = 2, .ep = 1}, 32);
  const auto changed = set_args(args.document, args.root, changes);
  CHECK(changed ==
        std::vector<std::string>{
            "tensor_model_parallel_size", "pipeline_model_parallel_size",
            "expert_tensor_parallel_size",
            "virtual_pipeline_model_parallel_size", "padded_vocab_size"});
  CHECK(pickle::to_json(args.document, args.root).dump() ==
        R"({"data_parallel_size":2,"expert_tensor_parallel_size":4,)"
        R"("padded_vocab_size":32,"pipeline_model_parallel_size":1,)"
        R"("tensor_model_parallel_size":4,"unknown":"kept",)"
        R"("virtual_pipeline_model_parallel_size":null,"world_size":8})");
  // The second time there is nothing left to change.
  CHECK(set_args(args.document, args.root, changes).empty());
}

TEST_CASE("megatron.legacy: names of core") {
  struct Row {
    const char* old;
    const char* core;
  };
  const Row rows[] = {
      {"language_model.embedding.word_embeddings.weight",
       "embedding.word_embeddings.weight"},
      {"language_model.encoder.layers.3.input_norm.weight",
       "decoder.layers.3.self_attention.linear_qkv.layer_norm_weight"},
      {"language_model.transformer.layers.0.attention.dense.bias",
       "decoder.layers.0.self_attention.linear_proj.bias"},
      {"language_model.encoder.layers.12.mlp.dense_4h_to_h.weight",
       "decoder.layers.12.mlp.linear_fc2.weight"},
      {"language_model.encoder.final_norm.bias",
       "decoder.final_layernorm.bias"},
      {"language_model.encoder.layers.1.self_attention.layernorm_qkv.weight",
       "decoder.layers.1.self_attention.linear_qkv.weight"},
      {"language_model.encoder.layers.1.layernorm_mlp.layer_norm_bias",
       "decoder.layers.1.mlp.linear_fc1.layer_norm_bias"},
      {"language_model.encoder.layers.1.layernorm_mlp.fc2_weight",
       "decoder.layers.1.mlp.linear_fc2.weight"},
      {"language_model.lm_head", "output_layer.weight"},
      {"language_model.lm_head.dense.weight",
       "language_model.lm_head.dense.weight"},
      {"language_model.pooler.dense.weight",
       "language_model.pooler.dense.weight"},
      {"decoder.layers.0.x", "decoder.layers.0.x"},
      {"language_model.encoder.layers.", "language_model.encoder.layers."},
  };
  for (const Row& row : rows) CHECK(core_name(row.old) == row.core);
}

// What is cut, from the sizes of the args and of one rank's part.
TEST_CASE("rules by sizes") {
  Facts facts;
  facts.hidden_size = 64;
  facts.ffn_hidden_size = 40;
  facts.num_attention_heads = 8;
  facts.num_query_groups = 2;
  facts.padded_vocab_size = 128;
  facts.gated = true;
  const std::string layer = "language_model.encoder.layers.0.";
  const std::string kv = layer + "self_attention.key_value.weight";
  const auto rule = [&](const std::string& name, const Shape& local) {
    return rule_by_sizes(name, local, 2, facts);
  };
  CHECK(rule(kv, {16, 64}) == TpRule::split(0));
  CHECK(rule(kv, {32, 64}) == TpRule::replicated());
  CHECK(rule(kv, {8, 64}) == TpRule{});
  CHECK(rule(kv, {16, 32}) == TpRule{});
  CHECK(rule(layer + "mlp.dense_h_to_4h.weight", {40, 64}) ==
        TpRule::split(0, 2));
  CHECK(rule(layer + "mlp.dense_4h_to_h.weight", {64, 20}) == TpRule::split(1));
  CHECK(rule(layer + "self_attention.dense.bias", {64}) ==
        TpRule::replicated());
  // The module's cut, and sizes that say another.
  CHECK(rule(layer + "self_attention.dense.weight", {32, 64}) == TpRule{});
  CHECK(rule(layer + "input_layernorm.weight", {32}) == TpRule{});
  CHECK(rule("language_model.odd.weight", {64, 64}) == TpRule{});
  facts.num_query_groups.reset();
  CHECK(rule(kv, {16, 64}) == TpRule{});  // two ways
  CHECK(rule(kv, {16, 32}) == TpRule::split(1));
  facts.hidden_size.reset();
  CHECK(rule(layer + "input_layernorm.weight", {64}) == TpRule{});
}

}  // namespace ckpt::megatron
