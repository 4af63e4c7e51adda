// SPDX-License-Identifier: Apache-2.0
// The family files' parts about fairseq2: tp_rules, buffers, tied, shapes,
// config_defaults.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::families {

// Found by fairseq2's name for the family (its olmo is our olmo2), else by ours
// (qwen2 is cut like its qwen) or by transformers' model_type (olmo3 is cut
// like its olmo). Sets "family" to fairseq2's name. Null if fairseq2 does not
// know it.
nlohmann::json fairseq2_section(std::string_view family);

// By fairseq2's names, sorted.
std::vector<std::string> fairseq2_families();

}  // namespace ckpt::families
