// SPDX-License-Identifier: Apache-2.0
// What PEFT's adapter_config.json asks of Megatron-Bridge's LoRA.
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "formats/peft/config.h"

namespace ckpt::families {

// PEFT's configuration. Throws unfaithful_error for what Megatron-Bridge's LoRA
// does not compute: scaling by the root of the rank, DoRA, repeated layers.
peft::Config config_for_bridge(const Catalog& source);
// ", dropout=0.05" or ""
std::string dropout_text(const peft::Config& config);

}  // namespace ckpt::families
