// SPDX-License-Identifier: Apache-2.0
// Translates an adapter by itself from PEFT's names to Megatron-Bridge's and
// back.
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
#include <string_view>

#include "ckpt/catalog.h"
#include "convert/options.h"

namespace ckpt::families {

// "hf" for PEFT's names, "mcore" for Megatron-Bridge's, "" if the tensors are
// not an adapter's.
std::string_view adapter_dialect(const Catalog& catalog);

// `ranks`: the target's tensor-parallel ranks, if it is a distributed
// checkpoint of Megatron's, else 1. Throws unfaithful_error naming what the
// other side has no place for.
Catalog translate_adapter(Catalog source, const TranslateOptions& options,
                          uint64_t ranks);

}  // namespace ckpt::families
