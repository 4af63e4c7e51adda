// SPDX-License-Identifier: Apache-2.0
#include "formats/vllm/config.h"

#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/json.h"

namespace ckpt::vllm {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxConfig = 64 << 20;
// Products of two such numbers fit 64 bits.
constexpr uint64_t kMost = uint64_t{1} << 31;

const Json* member(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found != json.end() && !found->is_null()) return &*found;
  const auto text = json.find("text_config");
  if (text == json.end() || !text->is_object()) return nullptr;
  const auto inner = text->find(key);
  return inner == text->end() || inner->is_null() ? nullptr : &*inner;
}

std::optional<uint64_t> count(const Json& json, const char* key,
                              const std::string& path) {
  const Json* value = member(json, key);
  if (!value) return std::nullopt;
  if (!value->is_number_unsigned() || value->get<uint64_t>() == 0 ||
      value->get<uint64_t>() > kMost)
    throw input_error({path, {}}, "{} is {}, expected a count", key,
                      value->dump(-1, ' ', true, Json::error_handler_t::replace)
                          .substr(0, 40));
  return value->get<uint64_t>();
}

void settle_heads(Config& config, const std::string& path) {
  if (!config.heads) return;
  if (!config.kv_heads) config.kv_heads = config.heads;
  if (*config.heads % *config.kv_heads != 0)
    throw input_error({path, {}},
                      "num_attention_heads {} is not a multiple of "
                      "num_key_value_heads {}",
                      *config.heads, *config.kv_heads);
  if (!config.head_dim && config.hidden)
    config.head_dim = *config.hidden / *config.heads;
}

// DeepSeek's fp8; nothing for any other quantization.
std::optional<std::array<uint64_t, 2>> blocks_of(const Json* quantized) {
  if (!quantized || !quantized->is_object()) return std::nullopt;
  const auto method = quantized->find("quant_method");
  const auto size = quantized->find("weight_block_size");
  if (method == quantized->end() || *method != Json("fp8") ||
      size == quantized->end() || !size->is_array() || size->size() != 2)
    return std::nullopt;
  std::array<uint64_t, 2> blocks{};
  for (size_t i = 0; i < 2; ++i) {
    const Json& one = (*size)[i];
    if (!one.is_number_unsigned() || one.get<uint64_t>() == 0 ||
        one.get<uint64_t>() > kMost)
      return std::nullopt;
    blocks[i] = one.get<uint64_t>();
  }
  return blocks;
}

Config from_json(const Json& json, const std::string& path) {
  if (!json.is_object())
    throw input_error({path, {}}, "expected an object, found {}",
                      json.type_name());
  Config config;
  const Json* type = member(json, "model_type");
  if (type && type->is_string()) config.model_type = type->get<std::string>();
  config.hidden = count(json, "hidden_size", path);
  config.heads = count(json, "num_attention_heads", path);
  config.kv_heads = count(json, "num_key_value_heads", path);
  config.head_dim = count(json, "head_dim", path);
  config.layers = count(json, "num_hidden_layers", path);
  config.q_rank = count(json, "q_lora_rank", path);
  config.vocab = count(json, "vocab_size", path);
  for (const char* key : {"num_local_experts", "num_experts",
                          "n_routed_experts", "moe_num_experts"})
    if (const Json* said = member(json, key);
        !config.experts && said && *said != Json(0))  // 0 where MLPs are dense
      config.experts = count(json, key, path);
  const Json* tied = member(json, "tie_word_embeddings");
  if (tied && tied->is_boolean()) config.tied = tied->get<bool>();
  const Json* quantized = member(json, "quantization_config");
  config.quantized = quantized != nullptr;
  config.blocks = blocks_of(quantized);
  settle_heads(config, path);
  return config;
}

}  // namespace

std::optional<uint64_t> Config::query_rows() const {
  return heads && head_dim ? std::optional(*heads * *head_dim) : std::nullopt;
}

std::optional<uint64_t> Config::key_rows() const {
  return kv_heads && head_dim ? std::optional(*kv_heads * *head_dim)
                              : std::nullopt;
}

std::optional<Config> config_of(const Catalog& catalog) {
  for (const Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == "config.json")
      return from_json(
          text::parse_python_json(sidecar.text
                                      ? *sidecar.text
                                      : io::read_file(sidecar.path, kMaxConfig),
                                  sidecar.path),
          sidecar.path);
  return std::nullopt;
}

}  // namespace ckpt::vllm
