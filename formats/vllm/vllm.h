// SPDX-License-Identifier: Apache-2.0
// vLLM's sharded_state: the parameters of each tensor-parallel rank as vLLM
// holds them in memory, so that a rank reads only its own files.
//
//   model-rank-0-part-0.safetensors   rank 0's tensors, in parts of at most a
//   model-rank-0-part-1.safetensors   given size; no __metadata__
//   model-rank-1-part-0.safetensors
//   config.json, tokenizer …          carried
//
// The names are Hugging Face's, except for what vLLM fuses:
//
//   qkv_proj       rows [q | k | v] of the rank; with more ranks than key/value
//                  heads, neighbouring ranks hold the same heads
//   gate_up_proj   rows [gate | up] of the rank
//   o_proj, down_proj        columns
//   embed_tokens, lm_head    rows of a vocabulary padded with zeros to a
//                            multiple of 64
//   experts.routed_experts.w13_weight, .w2_weight    [expert, gate | up, …] and
//                            [expert, …, columns]; or, with expert
//                            parallelism, a rank's own experts whole
//   fused_qkv_a_proj         [q_a | kv_a] of latent attention, whole
//   norms, routers, scales   whole on every rank
//
// No file states this: the columns of o_proj tell where q ends, and the head
// counts are config.json's. Here a tensor is the whole one: qkv_proj [Q | K |
// V], gate_up_proj [GATE | UP].
//
// The writer takes sources of this format, and sources with Hugging Face's
// names, which it fuses (fuse.h).
#pragma once

#include <memory>
#include <string_view>

#include "formats/format.h"

namespace ckpt::vllm {

inline constexpr std::string_view kFormat = "vllm";

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::vllm
