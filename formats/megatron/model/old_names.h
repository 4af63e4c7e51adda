// SPDX-License-Identifier: Apache-2.0
// Names of the megatron.legacy models (all checkpoints before 2023), as
// Megatron-Core's modules call the same parameters.
//
//   language_model.encoder.layers.3.self_attention.query_key_value.weight
//     ─► decoder.layers.3.self_attention.linear_qkv.weight
#pragma once

#include <string>
#include <string_view>

namespace ckpt::megatron {

// Returns any other name unchanged. Knows GPT models only: encoders with a
// decoder beside them (T5) keep their names.
std::string core_name(std::string_view name);

}  // namespace ckpt::megatron
