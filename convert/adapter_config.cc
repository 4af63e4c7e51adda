// SPDX-License-Identifier: Apache-2.0
#include "convert/adapter_config.h"

#include <fmt/format.h>

#include "ckpt/error.h"

namespace ckpt::families {

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
  if (config.dropout == 0) return {};
  return fmt::format(", dropout={:g}", config.dropout);
}

}  // namespace ckpt::families
