// SPDX-License-Identifier: Apache-2.0
// The reverse of fuse.h: what vLLM holds, as a Hugging Face model.
//
//   qkv_proj       q_proj, k_proj, v_proj
//   gate_up_proj   gate_proj, up_proj
//   embed_tokens, lm_head       the first vocab_size rows
//   attn._k_scale and the like  left out: ones, which vLLM makes itself
//
// What is left out goes to Catalog::redundant and is proven from its bytes.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::vllm {

// Turns a catalog of this format into one of dialect "hf". Throws
// unfaithful_error for models whose modules in vLLM are not known, and for
// quantized ones.
Catalog unfuse(Catalog source);

}  // namespace ckpt::vllm
