#include "formats/vllm/models.h"

#include <array>
#include <string>

#include "ckpt/error.h"

namespace ckpt::vllm {
namespace {

constexpr auto kModels = std::to_array<Model>({
    {"llama", true, false},
    {"mistral", true, false},
    {"qwen2", true, false},
    {"qwen3", true, false},
    {"phi3", true, false},
    {"gemma", false, true},
    {"gemma2", false, true},
    {"gemma3_text", false, true},
});

constexpr std::array<std::string_view, 3> kQkv = {"q_proj", "k_proj", "v_proj"};
constexpr std::array<std::string_view, 2> kGateUp = {"gate_proj", "up_proj"};
constexpr std::array<Fusion, 2> kFusions = {
    {{"qkv_proj", kQkv}, {"gate_up_proj", kGateUp}}};

}  // namespace

const Model& model_of(const Catalog& source,
                      const std::optional<Config>& config) {
  if (!config)
    throw unfaithful_error({source.path, {}},
                           "there is no config.json, and what vLLM fuses "
                           "depends on the model")
        .with_hint("put the model's config.json beside its files");
  if (config->quantized)
    throw unfaithful_error({source.path, {}},
                           "config.json has a quantization_config: vLLM packs "
                           "such weights anew, in ways of its own")
        .with_hint("convert the unquantized model");
  for (const Model& model : kModels)
    if (model.type == config->model_type) return model;
  std::string known;
  for (const Model& model : kModels)
    known += (known.empty() ? "" : ", ") + std::string(model.type);
  throw unfaithful_error({source.path, {}},
                         "how vLLM arranges a model of type \"{}\" is not "
                         "known",
                         config->model_type)
      .with_hint("known are " + known);
}

std::span<const Fusion> fusions() { return kFusions; }

}  // namespace ckpt::vllm
