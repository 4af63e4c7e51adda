// SPDX-License-Identifier: Apache-2.0
// Translates an adapter by itself: from any dialect to PEFT's names
// (peft_form.h), and from those to Megatron-Bridge's or llama.cpp's.
//
//   base_model.model.M.q_proj.lora_A.weight   [r, in]
//       ….self_attention.linear_qkv.adapter.adapter_q.linear_in.weight
//   base_model.model.M.o_proj.lora_B.weight   [out, r]
//       ….self_attention.linear_proj.adapter.linear_out.weight
//
// q, k, v, gate and up each have factors of their own: Bridge's CanonicalLoRA.
// Bridge's LoRA has one pair for the fused matrix, whose `linear_in` serves all
// of them; ckpt reads that form but does not write it. The family's rules say
// which module is which, so the base's config.json is needed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ckpt/catalog.h"
#include "convert/options.h"

namespace ckpt::families {

// "hf" for PEFT's files, "live" for a model of PEFT's that was saved with its
// configuration, "loose" for a file that has its configuration only beside it,
// "mcore" for Megatron-Bridge's and NeMo 1's names, "mlx" and so
// on (formats/peft/names.h); "" if the tensors are not an adapter's alone.
std::string_view adapter_dialect(const Catalog& catalog);

// Whether an adapter of that dialect becomes PEFT's by its base's numbers.
bool needs_base_numbers(std::string_view dialect);

// Whether adapters of any dialect are written in that one, by the base's
// numbers, in a format of its own.
bool takes_adapters(std::string_view dialect);

// `ranks`: the target's tensor-parallel ranks, if it is a distributed
// checkpoint of Megatron's, else 1. `alpha` in the place of what the files say.
// Throws unfaithful_error naming what the other side has no place for.
Catalog translate_adapter(Catalog source, const TranslateOptions& options,
                          uint64_t ranks, std::optional<double> alpha);

}  // namespace ckpt::families
