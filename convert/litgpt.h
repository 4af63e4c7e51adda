// SPDX-License-Identifier: Apache-2.0
// litgpt's model_config.yaml, as transformers says the same
// (models/families/litgpt.json).
//
//   out/final/lit_model.pth
//   out/final/model_config.yaml     n_layer: 2, mlp_class_name: LLaMAMLP …
//   out/final/config.json           the one of the model that it began as, if
//                                   there was one
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "models/numbers.h"

namespace ckpt::families {

inline constexpr std::string_view kLitgpt = "litgpt";
inline constexpr std::string_view kLitgptConfig = "model_config.yaml";

// "transformer.h.0.attn.qkv.weight", or attn.attn.weight as older releases have
// it; with whatever stands before.
bool has_litgpt_names(const Catalog& catalog);

// NeMo has a file of the same name.
bool is_litgpt_config(std::string_view text);

// A config.json. Throws unfaithful_error for what no model of transformers that
// is known computes, input_error for a damaged file; `path` is for messages.
Json litgpt_config(const std::string& text, const std::string& path);

// Keys of the file that are not known.
std::vector<std::string> unknown_litgpt_keys(const std::string& text,
                                             const std::string& path);

}  // namespace ckpt::families
