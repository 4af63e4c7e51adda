// SPDX-License-Identifier: Apache-2.0
// What the family files say of fairseq2: tp_rules, buffers, tied, shapes,
// config_defaults.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::families {

// By the name that fairseq2 has for the family (its olmo is our olmo2), else
// by ours (qwen2 is cut as its qwen) or by transformers' model_type (olmo3 is
// cut as its olmo). "family" is set to fairseq2's name.
// Null if fairseq2 does not know it.
nlohmann::json fairseq2_section(std::string_view family);

// By fairseq2's names, sorted.
std::vector<std::string> fairseq2_families();

}  // namespace ckpt::families
