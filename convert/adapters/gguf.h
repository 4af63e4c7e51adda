// SPDX-License-Identifier: Apache-2.0
// A LoRA as llama.cpp loads it beside its base, from PEFT's names:
//
//   base_model.model.M.q_proj.lora_A.weight  ─►  blk.0.attn_q.weight.lora_a
//   …lora_B.weight                           ─►  …lora_b, with the rows of q
//
// The base's rules (models/families, "gguf") say which weight is which, and how
// its rows lie; one key says alpha, and a factor's own shape its rank.
#pragma once

#include "convert/adapters/base.h"
#include "convert/adapters/peft_form.h"

namespace ckpt::families {

// Throws unfaithful_error for what llama.cpp has no place for.
Catalog adapter_in_gguf(PeftForm form, const AdapterBase& base);

}  // namespace ckpt::families
