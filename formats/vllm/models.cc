// SPDX-License-Identifier: Apache-2.0
#include "formats/vllm/models.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "models/family.h"

namespace ckpt::vllm {
namespace {

// A part of a name that is called otherwise, and where it begins.
struct FoundRenaming {
  const Renaming* renaming;
  size_t at;
};

// The longest one, if any; names begin at a dot.
std::optional<FoundRenaming> find_renaming(const Model& model,
                                           std::string_view name,
                                           std::string Renaming::*side) {
  std::optional<FoundRenaming> best;
  for (const Renaming& renaming : model.renamings) {
    const std::string& part = renaming.*side;
    const size_t at = name.find("." + part);
    if (at == name.npos) continue;
    if (!part.ends_with('.') && at + 1 + part.size() != name.size()) continue;
    if (!best || part.size() > (best->renaming->*side).size())
      best = FoundRenaming{&renaming, at + 1};
  }
  return best;
}

std::string renamed(const Model& model, std::string name,
                    std::string Renaming::*from, std::string Renaming::*to) {
  const auto found = find_renaming(model, name, from);
  if (!found) return name;
  return name.replace(found->at, (found->renaming->*from).size(),
                      found->renaming->*to);
}

// True if no weight is codes, whatever config.json says.
bool has_plain_weights(const Catalog& source) {
  return std::ranges::all_of(source.tensors, [](const Tensor& tensor) {
    const bool plain =
        tensor.dtype == DType::f32 || tensor.dtype == DType::f16 ||
        tensor.dtype == DType::bf16 || tensor.dtype == DType::f64;
    return plain && tensor.name.find("weight_scale") == std::string::npos;
  });
}

[[noreturn]] void refuse_quantized(const Catalog& source) {
  if (has_plain_weights(source))
    throw unfaithful_error({source.path, {}},
                           "config.json has a quantization_config, and no "
                           "weight is quantized: by it vLLM's attention has "
                           "parameters for the scales of its cache, and its "
                           "shards lack them")
        .with_hint("take quantization_config out of config.json");
  throw unfaithful_error({source.path, {}},
                         "config.json has a quantization_config that is not "
                         "fp8 in blocks: how vLLM holds such weights depends "
                         "on the kernels that a GPU has")
      .with_hint("--dtype bf16 makes numbers of them on the way");
}

}  // namespace

Model model_of(const Catalog& source, const std::optional<Config>& config) {
  if (!config)
    throw unfaithful_error({source.path, {}},
                           "there is no config.json, and what vLLM fuses "
                           "depends on the model")
        .with_hint("put the model's config.json beside its files");
  if (config->quantized && !config->blocks) refuse_quantized(source);
  if (const auto family = families::Family::for_vllm(config->model_type)) {
    Model model{*family->vllm(), config->model_type};
    model.latent = std::ranges::count(model.fusions, kLatent, &Fusion::to) != 0;
    return model;
  }
  throw unfaithful_error({source.path, {}},
                         "how vLLM arranges a model of type \"{}\" is not "
                         "known",
                         config->model_type)
      .with_hint(fmt::format(
          "vLLM itself loads transformers' files and cuts them for its ranks: "
          "--to safetensors; for sharded_state, known are {}",
          fmt::join(families::Family::vllm_types(), ", ")));
}

families::View turn_heads(const families::View& view, const Config& config,
                          const std::string& name, bool keys, bool halves) {
  const uint64_t heads = (keys ? config.kv_heads : config.heads).value_or(0);
  const Shape& shape = view.shape();
  if (shape.empty() || heads == 0 || shape[0] % (2 * heads) != 0)
    throw unfaithful_error({{}, name},
                           "{} does not divide into pairs of rows of each of "
                           "config.json's {} heads",
                           to_string(shape), heads);
  const uint64_t half = shape[0] / heads / 2;
  Shape pairs = {heads, halves ? half : 2, halves ? 2 : half};
  std::vector<uint32_t> axes = {0, 2, 1};
  for (size_t i = 1; i < shape.size(); ++i) {
    pairs.push_back(shape[i]);
    axes.push_back(static_cast<uint32_t>(i + 2));
  }
  return view.reshape(pairs).permute(axes).reshape(shape);
}

Renaming::How arrangement(const Model& model, std::string_view name) {
  const auto found = find_renaming(model, name, &Renaming::hf);
  return found ? found->renaming->how : Renaming::kSame;
}

std::string vllm_name(const Model& model, std::string name) {
  return renamed(model, std::move(name), &Renaming::hf, &Renaming::vllm);
}

std::string hf_name(const Model& model, std::string name) {
  return renamed(model, std::move(name), &Renaming::vllm, &Renaming::hf);
}

}  // namespace ckpt::vllm
