// SPDX-License-Identifier: Apache-2.0
// Shared by the writers of configurations in all dialects.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "convert/config/facts.h"

namespace ckpt::families {

inline constexpr char kHfConfig[] = "config.json";
inline constexpr char kYaml[] = "model.yaml";
inline constexpr char kParams[] = "params.json";

inline constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id",
                                            "pad_token_id"};

// Adds a generated file beside the tensors, or a generated object.
void add_text(Catalog& catalog, std::string name, std::string text);
// As Python's json module writes it, which has infinity and NaN: an indent of
// two, and one line at the end.
std::string config_text(const Json& config);
void add_object(Catalog& catalog, std::string name, const Json& value);

// As transformers spells it.
std::string torch_name(DType dtype);

// A warning about what --allow-unsaid let pass.
void warn_of_unsaid(const std::vector<FactDifference>& unsaid,
                    const std::string& what, Catalog& catalog);

}  // namespace ckpt::families
