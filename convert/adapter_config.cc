// SPDX-License-Identifier: Apache-2.0
#include "convert/adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "ckpt/error.h"
#include "formats/megatron/canonical/adapter_rows.h"
#include "formats/megatron/state/run_config.h"
#include "lib/io/file.h"
#include "lib/text/json.h"

namespace ckpt::families {
namespace {

using Json = nlohmann::json;

constexpr char kArgs[] = "args";
constexpr char kRunConfig[] = "run_config.yaml";

bool is_peft_config(const Sidecar& sidecar) {
  return sidecar.name == peft::kConfigFile;
}

std::optional<double> number(const Config& config, std::string_view key) {
  const auto found = config.find(key);
  if (found == config.end()) return std::nullopt;
  if (const auto* whole = std::get_if<int64_t>(&found->second))
    return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&found->second)) return *real;
  return std::nullopt;
}

// Bridge's classes of these names compute the same as PEFT's LoRA.
void check_class(const Catalog& source, const Config& config) {
  const auto found = config.find("peft._target_");
  if (found == config.end()) return;
  const std::string name = to_string(found->second);
  if (name.ends_with(".LoRA") || name.ends_with(".CanonicalLoRA")) return;
  throw unfaithful_error({source.path, {}},
                         "{} says peft {}, and only LoRA and CanonicalLoRA "
                         "become PEFT's",
                         kRunConfig, name);
}

}  // namespace

peft::Config config_for_bridge(const Catalog& source) {
  const auto config = peft::read_config(source.path);
  if (!config)
    throw missing_error({source.path, {}}, "there is no {} beside the adapter",
                        peft::kConfigFile);
  std::string why = config->hindrance;
  if (config->rslora) why = "it is scaled by the root of the rank (use_rslora)";
  if (config->dora) why = "it has magnitudes (DoRA)";
  if (config->fan_in_fan_out) why = "its base's matrices are transposed";
  if (!why.empty())
    throw unfaithful_error({config->path, {}},
                           "Megatron-Bridge's LoRA is different: {}", why)
        .with_hint(
            "add the adapter to its base: ckpt convert BASE DST --adapter DIR");
  return *config;
}

std::string dropout_text(const peft::Config& config) {
  const auto root =
      text::parse_json(io::read_file(config.path, 1 << 24), config.path);
  const auto found = root.find("lora_dropout");
  if (found == root.end() || !found->is_number() || *found == 0) return {};
  return fmt::format(", dropout={:g}", found->get<double>());
}

void write_peft_config(Catalog& source, const AdapterModules& modules) {
  std::erase_if(source.objects, [](const Object& object) {
    return object.name == kArgs || object.name == "checkpoint_version" ||
           object.name == "iteration";
  });
  if (std::ranges::any_of(source.sidecars, is_peft_config)) return;
  const Config config = megatron::run_config(source);
  check_class(source, config);
  const auto rank = whole_number(config, "peft.dim");
  const auto alpha = number(config, "peft.alpha");
  if (!rank || !alpha)
    throw unfaithful_error({source.path, {}},
                           "nothing says the adapter's alpha: neither {} nor "
                           "peft.dim and peft.alpha in {}",
                           peft::kConfigFile, kRunConfig)
        .with_hint(
            "put the adapter_config.json that it was trained with beside the "
            "checkpoint's files");
  if (modules.ranks.size() != 1 || !modules.ranks.contains(*rank))
    throw unfaithful_error(
        {source.path, {}}, "{} says dim {}, the factors are of rank {}",
        kRunConfig, *rank, modules.ranks.empty() ? 0 : *modules.ranks.begin());
  const Json made{{"peft_type", "LORA"},
                  {"task_type", "CAUSAL_LM"},
                  {"base_model_name_or_path", nullptr},
                  {"bias", "none"},
                  {"fan_in_fan_out", false},
                  {"inference_mode", true},
                  {"r", *rank},
                  {"lora_alpha", *alpha},
                  {"lora_dropout", number(config, "peft.dropout").value_or(0)},
                  {"target_modules", modules.names}};
  Sidecar sidecar{.name = std::string(peft::kConfigFile),
                  .path = "made:" + std::string(peft::kConfigFile)};
  sidecar.text = std::make_shared<const std::string>(made.dump(2) + "\n");
  sidecar.size = sidecar.text->size();
  source.sidecars.push_back(std::move(sidecar));
}

}  // namespace ckpt::families
