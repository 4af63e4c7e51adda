// SPDX-License-Identifier: Apache-2.0
// What Hugging Face libraries keep beside the weights, whatever container those
// are in: config.json, tokenizer files and the like.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// The name of config.json beside tensors that have other names than those of
// transformers: under its own, transformers would open the directory, find none
// of its parameters and make them up.
inline constexpr char kConfig[] = "config.json";
inline constexpr char kForeignConfig[] = "hf_config.json";

// Whether a Hugging Face model's files have such a name: "tokenizer.json",
// "README.md".
bool is_sidecar_name(std::string_view name);

// Adds the files of `directory` that belong to a Hugging Face model to the
// sidecars. An hf_config.json that stands alone is named config.json there. A
// link that leads nowhere is none, unless it explains the tensors
// (config.json): it is named where the directory's files are listed.
void add_sidecars(const std::string& directory, Catalog& catalog);

// Sets dialect and family: "hf" if a config.json in `directory` names a model
// or the tensors are named as transformers does; the family is config.json's
// model_type, unchanged. A config.json that can't be read is a problem
// ("config_json"), not an error: the tensors are whole without it.
void detect_dialect(const std::string& directory, Catalog& catalog);

// The model's config.json: among the sidecars, or in the checkpoint's
// directory. Null if there is none. Throws input_error for one that can't be
// read.
nlohmann::json config_json_of(const Catalog& catalog);

// Makes config.json say that the weights have this dtype, wherever it gives
// one. The rest of its text is unchanged. `beside`: a config.json in the
// checkpoint's directory counts, though its format keeps no configuration.
void set_config_dtype(Catalog& catalog, DType dtype, bool beside);

}  // namespace ckpt::formats
