// SPDX-License-Identifier: Apache-2.0
// What torchtitan 0.3 and transformers call the same parameters, model by
// model: data, read from each model's state_dict_adapter.py, except for
// gpt_oss, whose adapter has names of experts that its model has not.
// Private to this room.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::runs::titan {

struct Pair {
  std::string_view hf, titan;  // below a layer, or at the top
};

struct Model {
  std::string_view type;  // transformers' model_type
  std::array<std::span<const Pair>, 6> layer;
  bool pairs = false;  // rotary pairs are adjacent, and halves in transformers
  bool grouped =
      false;          // all experts in one; transformers saves each by itself
  bool bias = false;  // transformers has the bias of experts, too
};

// Null: torchtitan has no such model, or it is not known.
const Model* find_model(std::string_view type);
// "llama, qwen3, …"
std::string known_models();

constexpr std::string_view kFused = "attention.qkv_linear.wqkv.";
constexpr std::string_view kExpertBias = "moe.expert_bias_E";
constexpr std::string_view kRouter = "moe.router.gate.weight";

// "3" of "model.layers.3.mlp.up_proj.weight", and what follows.
struct InLayer {
  uint64_t number = 0;
  std::string rest;
  bool mtp = false;  // behind the last layer: it predicts more tokens
};
// `layers`: how many come before those of multi-token prediction.
std::optional<InLayer> in_hf_layer(std::string_view name, uint64_t layers);
std::optional<InLayer> in_titan_layer(std::string_view name);
std::string in_hf(const InLayer& at, std::string_view rest, uint64_t layers);
std::string in_titan(const InLayer& at, std::string_view rest);

// Names of one parameter that both have; "" if the other has none.
std::string titan_name(const Model& model, const std::string& hf,
                       uint64_t layers);
std::string hf_name(const Model& model, const std::string& titan,
                    uint64_t layers);

// A part of what the other has in one: which one, of which name.
struct Part {
  size_t index = 0;
  std::string whole;
};
// q_proj, k_proj, v_proj of transformers: parts of the projection that
// torchtitan trains.
std::optional<Part> part_of_fused(const Model& model, const std::string& hf,
                                  uint64_t layers);
std::vector<std::string> parts_of_fused(const Model& model,
                                        const std::string& titan,
                                        uint64_t layers);
// One expert of transformers' files: a part of torchtitan's grouped experts.
std::optional<Part> part_of_experts(const Model& model, const std::string& hf,
                                    uint64_t layers);
// "…mlp.experts.{}.up_proj.weight" for torchtitan's grouped ones, in two.
struct Each {
  std::string before, after;
};
std::optional<Each> each_expert(const Model& model, const std::string& titan,
                                uint64_t layers);
// What transformers 5 trains, gate_up_proj: torchtitan's w1 and w3.
std::vector<std::string> parts_of_trained(const Model& model,
                                          const std::string& hf,
                                          uint64_t layers);
std::optional<Part> part_of_trained(const Model& model,
                                    const std::string& titan, uint64_t layers);

// What the other calls a trained parameter, in any model.
std::vector<std::string> others(const std::string& parameter);

}  // namespace ckpt::runs::titan
