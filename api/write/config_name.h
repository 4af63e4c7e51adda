// SPDX-License-Identifier: Apache-2.0
// Under which name a model's config.json stands beside its tensors.
#pragma once

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::library {

// In a directory of safetensors or torch files whose tensors don't have
// transformers' names, the config.json of a model of transformers becomes
// hf_config.json, and comes back under its own name with those of transformers.
// Adds a warning about it. Not for vLLM's names: vLLM reads them by a
// config.json. Nor for a directory that came with both, unless the names were
// asked for.
// Likewise where a problem of kind kOwnNames says that --rename gave names that
// the configuration has no place for.
inline constexpr char kOwnNames[] = "own_names";
void name_config(const Catalog& source, Target& target);

}  // namespace ckpt::library
