// SPDX-License-Identifier: Apache-2.0
// Names of experts' parameters, as DeepSpeed's own MoE layers have them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckpt::deepspeed {

// "a.mlp.deepspeed_moe.experts.deepspeed_experts.3.fc.weight"
struct ExpertName {
  std::string_view layer;  // "a.mlp"
  uint64_t expert = 0;
  std::string_view rest;  // ".fc.weight"
};

std::optional<ExpertName> parse_expert_name(std::string_view name);
std::string expert_name(std::string_view layer, uint64_t expert,
                        std::string_view rest);

}  // namespace ckpt::deepspeed
