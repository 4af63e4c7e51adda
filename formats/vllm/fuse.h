// SPDX-License-Identifier: Apache-2.0
// A Hugging Face model as vLLM holds it.
//
//   q_proj, k_proj, v_proj      qkv_proj       [q | k | v]
//   gate_proj, up_proj          gate_up_proj   [gate | up]
//   embed_tokens, lm_head       rows of zeros up to a multiple of 64
//   experts.N.gate_proj …       experts.routed_experts.w13_weight, w2_weight
//   q_a_proj, kv_a_proj…        fused_qkv_a_proj
//   tied embeddings             one tensor, by the smaller of its names, as
//                               vLLM's own loader looks for it
//   self_attn                   attn._k_scale, _prob_scale, _q_scale, _v_scale:
//                               buffers of ones, which vLLM has since 2025
//
// Only for models known to have these modules in vLLM.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::vllm {

// Throws unfaithful_error for other models, for quantized ones, and if a part
// of a fused tensor is missing.
Catalog fuse(Catalog source);

}  // namespace ckpt::vllm
