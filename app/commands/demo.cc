// SPDX-License-Identifier: Apache-2.0
// A tiny model to try everything on: the smallest Llama that every target
// takes, with values that are the same on every machine.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "api/places.h"
#include "api/saver.h"
#include "app/command.h"
#include "app/commands/write.h"
#include "app/keep.h"
#include "app/options/target_name.h"
#include "ckpt/error.h"
#include "formats/options.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

constexpr uint64_t kHidden = 64, kInner = 192, kLayers = 4, kHeads = 8,
                   kGroups = 4, kVocabulary = 256;

constexpr std::string_view kConfig = R"({{
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 1,
  "dtype": "float32",
  "eos_token_id": 2,
  "head_dim": {},
  "hidden_act": "silu",
  "hidden_size": {},
  "initializer_range": 0.02,
  "intermediate_size": {},
  "max_position_embeddings": 512,
  "mlp_bias": false,
  "model_type": "llama",
  "num_attention_heads": {},
  "num_hidden_layers": {},
  "num_key_value_heads": {},
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 10000.0,
  "tie_word_embeddings": false,
  "use_cache": true,
  "vocab_size": {}
}}
)";

// The output of splitmix64 at a place.
uint64_t mixed(uint64_t place) {
  uint64_t z = place * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

class TinyModel {
 public:
  TinyModel() {
    add("model.embed_tokens.weight", {kVocabulary, kHidden});
    for (uint64_t layer = 0; layer < kLayers; ++layer) add_layer(layer);
    add("model.norm.weight", {kHidden});
    add("lm_head.weight", {kVocabulary, kHidden});
  }

  // Its arrays live as long as the model.
  std::vector<ShardedTensor> shards() const {
    std::vector<ShardedTensor> shards;
    for (size_t i = 0; i < names_.size(); ++i)
      shards.push_back({.name = names_[i],
                        .dtype = DType::f32,
                        .shape = shapes_[i],
                        .box = Box::whole(shapes_[i]),
                        .bytes = std::as_bytes(std::span(values_[i]))});
    return shards;
  }

 private:
  void add_layer(uint64_t layer) {
    constexpr uint64_t kKeys = kHidden / kHeads * kGroups;
    const std::string at = fmt::format("model.layers.{}.", layer);
    add(at + "input_layernorm.weight", {kHidden});
    add(at + "mlp.down_proj.weight", {kHidden, kInner});
    add(at + "mlp.gate_proj.weight", {kInner, kHidden});
    add(at + "mlp.up_proj.weight", {kInner, kHidden});
    add(at + "post_attention_layernorm.weight", {kHidden});
    add(at + "self_attn.k_proj.weight", {kKeys, kHidden});
    add(at + "self_attn.o_proj.weight", {kHidden, kHidden});
    add(at + "self_attn.q_proj.weight", {kHidden, kHidden});
    add(at + "self_attn.v_proj.weight", {kKeys, kHidden});
  }

  // Norms are ones. Weights are multiples of 2^-27 below 1/16, which every
  // machine computes alike.
  void add(std::string name, Shape shape) {
    std::vector<float> values(shape.size() == 1 ? shape[0]
                                                : shape[0] * shape[1]);
    for (float& value : values) {
      const auto bits = static_cast<int32_t>(mixed(++place_) >> 40);
      value = shape.size() == 1
                  ? 1.0F
                  : static_cast<float>(bits - (1 << 23)) * 0x1p-27F;
    }
    names_.push_back(std::move(name));
    shapes_.push_back(std::move(shape));
    values_.push_back(std::move(values));
  }

  std::vector<std::string> names_;
  std::vector<Shape> shapes_;
  std::vector<std::vector<float>> values_;
  uint64_t place_ = 0;
};

class Demo : public Command {
 public:
  std::string_view name() const override { return "demo"; }
  std::string_view help() const override {
    return "write a tiny model to try everything on";
  }
  std::string_view examples() const override {
    return "ckpt demo tiny && ckpt inspect tiny\n"
           "ckpt convert tiny mc --to megatron_torch_dist --tp 2 --pp 2\n"
           "ckpt verify tiny mc\n"
           "ckpt convert tiny half --to hf --dtype bf16 && ckpt diff tiny half";
  }
  void add_options(CLI::App& app) override {
    app.add_option("DIR", request_.target_path, "Where the model goes")
        ->required()
        ->group("Arguments");
    app.add_flag("-n,--dry-run", request_.write.dry_run,
                 "Say what would be written; write nothing")
        ->group("Target");
    app.add_flag("--overwrite", request_.write.overwrite,
                 "Replace DIR, once the new one is whole")
        ->group("Target");
  }
  ExitCode run() override {
    library::check_target_name(request_.target_path);
    if (!file_format(request_.target_path).empty())
      throw usage_error({request_.target_path, {}},
                        "a model of Hugging Face is a directory")
          .with_hint("ckpt demo tiny && ckpt convert tiny " +
                     text::shell_path(request_.target_path));
    request_.command = "demo";
    request_.output = output;
    const TinyModel& model = keep(TinyModel());
    RankState state;
    state.files["config.json"] =
        fmt::format(kConfig, kHidden / kHeads, kHidden, kInner, kHeads, kLayers,
                    kGroups, kVocabulary);
    const Layout layout{.format = std::string(formats::usual_container())};
    std::vector<RankState> states;
    states.push_back(std::move(state));
    Catalog catalog =
        library::catalog_of(model.shards(), std::move(states), layout);
    return write_checkpoint(request_, std::move(catalog), layout);
  }

 private:
  WriteRequest request_;
};

}  // namespace

std::unique_ptr<Command> make_demo() { return std::make_unique<Demo>(); }

}  // namespace ckpt::app
