// SPDX-License-Identifier: Apache-2.0
#include "formats/modelopt/config.h"

#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/json.h"

namespace ckpt::modelopt {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxConfig = 64 << 20;

// A member that exists and isn't null; in text_config if not at the top.
const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const Json* text_member(const Json& config, const char* key) {
  if (const Json* found = member(config, key)) return found;
  const Json* text = member(config, "text_config");
  return text ? member(*text, key) : nullptr;
}

std::optional<uint64_t> number(const Json* value) {
  if (!value || !value->is_number_unsigned()) return std::nullopt;
  return value->get<uint64_t>();
}

bool is_true(const Json* value) {
  return value && value->is_boolean() && value->get<bool>();
}

BlockConfig read_block(const Json& json) {
  BlockConfig block;
  if (const Json* attention = member(json, "attention")) {
    block.attention = !is_true(member(*attention, "no_op"));
    block.plain_attention =
        !is_true(member(*attention, "replace_with_linear")) &&
        !member(*attention, "mamba");
    block.kv_heads = number(member(*attention, "num_key_value_heads"));
  }
  if (const Json* ffn = member(json, "ffn")) {
    block.ffn = !is_true(member(*ffn, "no_op"));
    const Json* moe = member(*ffn, "moe");
    block.plain_ffn = !is_true(member(*ffn, "replace_with_linear")) && !moe;
    block.intermediate = number(member(*ffn, "intermediate_size"));
    if (moe) block.experts = number(member(*moe, "num_local_experts"));
  }
  return block;
}

Config from_json(const Json& json) {
  Config config;
  const Json* type = member(json, "model_type");
  if (type && type->is_string()) config.model_type = type->get<std::string>();
  config.tied = is_true(text_member(json, "tie_word_embeddings"));
  config.layers = number(text_member(json, "num_hidden_layers"));
  config.head_dim = number(text_member(json, "head_dim"));
  if (!config.head_dim) {
    const auto hidden = number(text_member(json, "hidden_size"));
    const auto heads = number(text_member(json, "num_attention_heads"));
    if (hidden && heads && *heads) config.head_dim = *hidden / *heads;
  }
  const Json* blocks = text_member(json, "block_configs");
  config.any_model = blocks && blocks->is_array();
  if (config.any_model)
    for (const Json& block : *blocks)
      config.blocks.push_back(read_block(block));
  return config;
}

std::optional<Config> parse_config(const std::string& text,
                                   const std::string& path) {
  const Json json = text::parse_python_json(text, path);
  if (!json.is_object()) return std::nullopt;
  return from_json(json);
}

}  // namespace

std::optional<Config> read_config(const std::string& path) {
  if (!io::is_file(path)) return std::nullopt;
  try {
    return parse_config(io::read_file(path, kMaxConfig), path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<Config> config_of(const Catalog& catalog) {
  for (const Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == "config.json")
      return sidecar.text ? parse_config(*sidecar.text, sidecar.path)
                          : read_config(sidecar.path);
  // Readers of other formats may only list it as a file beside theirs.
  return read_config(io::join(catalog.path, "config.json"));
}

}  // namespace ckpt::modelopt
