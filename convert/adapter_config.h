// SPDX-License-Identifier: Apache-2.0
// What an adapter says about itself besides its tensors: PEFT's
// adapter_config.json, `peft` in Megatron-Bridge's run_config.yaml.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "ckpt/catalog.h"
#include "formats/peft/config.h"

namespace ckpt::families {

struct AdapterModules {
  std::set<std::string> names;  // "q_proj", …
  std::set<uint64_t> ranks;
};

// PEFT's configuration. Throws unfaithful_error for what Megatron-Bridge's LoRA
// does not compute: scaling by the root of the rank, DoRA, repeated layers.
peft::Config config_for_bridge(const Catalog& source);
// ", dropout=0.05" or ""
std::string dropout_text(const peft::Config& config);

// Gives the catalog an adapter_config.json, if it has none.
void write_peft_config(Catalog& source, const AdapterModules& modules);

}  // namespace ckpt::families
