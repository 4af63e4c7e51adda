// SPDX-License-Identifier: Apache-2.0
// What each of vLLM's tensors is, and how ranks share it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "formats/rank_cut.h"
#include "formats/vllm/config.h"

namespace ckpt::vllm {

// A vocabulary is padded to a multiple of this many rows.
inline constexpr uint64_t kVocabMultiple = 64;

enum class Role : uint8_t {
  kUnknown,
  kQkv,      // qkv_proj: segments q, k, v of dimension 0
  kGateUp,   // gate_up_proj: two segments of dimension 0
  kRows,     // q_b_proj, kv_b_proj, up_proj without gate: dimension 0
  kColumns,  // o_proj, down_proj: dimension 1
  kVocab,    // embed_tokens, lm_head: dimension 0
  kUp13,     // experts.w13_weight: two segments of dimension 1
  kDown2,    // experts.w2_weight: dimension 2
  kMixed13,  // gpt-oss's w13_weight: rows of gate and up alternate, dimension 1
  kBias13,   // its w13_bias: the same
  kBias2,    // its w2_bias: whole on the first rank, zeros on the others
  kNormQ,    // a norm of all query heads at once: dimension 0
  kNormK,    // … of all key heads
  kWhole,
};

// Also kUnknown for quantized weights, which vLLM packs and transposes to suit
// its kernels; but `fp8` in blocks is loaded as stored: codes, and scales
// (weight_scale_inv) that are cut like their weight.
Role role_of(std::string_view name, DType dtype, const Shape& shape,
             bool fp8 = false);

// "….weight" of "….weight_scale_inv"; nothing for any other name.
std::optional<std::string> scaled_weight(std::string_view name);
inline constexpr std::string_view kScaleInv = "_scale_inv";

// Attention parameters in an fp8 model, -1 until a checkpoint has them.
inline constexpr std::string_view kCacheScales[] = {
    "attn.k_scale", "attn.v_scale", "attn.q_scale", "attn.prob_scale"};

// "model.layers.0.self_attn.o_proj.weight" for that layer's qkv_proj: it has as
// many columns as the queries have rows.
std::string output_of(std::string_view qkv_name);

// The facts that a cut needs besides the tensor.
struct Facts {
  std::string path;                 // for messages
  uint32_t ranks = 1;               // that share it, or will
  bool whole_experts = false;       // ranks should own whole experts (ep)
  std::optional<Config> config;     // config.json
  std::optional<uint64_t> queries;  // columns of o_proj, as the tensor's rows:
                                    // a rank's, or those of the whole
};

// Whether ranks after the first hold zeros where the first holds the tensor: a
// bias of what the ranks add up.
bool is_first_only(std::string_view name, DType dtype, const Shape& local,
                   const Facts& facts);

// How ranks share a tensor if each holds a shard of shape `local`. Throws
// input_error if no tensor has such shards; nothing if no rule knows it.
std::optional<formats::Cut> stored_cut(std::string_view name, DType dtype,
                                       const Shape& local, const Facts& facts);

// How ranks should share a tensor. `held`: the ranks of the source's files. For
// a qkv_proj, a TpRule that the user gave (--shard-dims) counts. Throws
// unfaithful_error if they can't share it. Nothing if no rule knows it.
std::optional<formats::Cut> wanted_cut(const Tensor& tensor, uint32_t held,
                                       const Facts& facts);

}  // namespace ckpt::vllm
