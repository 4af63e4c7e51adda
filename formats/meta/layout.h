// SPDX-License-Identifier: Apache-2.0
// What each of Meta's tensors is, and how ranks share it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "ckpt/catalog.h"
#include "formats/meta/params.h"
#include "formats/rank_cut.h"

namespace ckpt::meta {

enum class Role : uint8_t {
  kUnknown,
  kEmbedding,  // tok_embeddings.weight
  kRows,       // output, w1, w3
  kColumns,    // w2
  kQuery,      // wq: rows by whole heads
  kKey,        // wk, wv: the same; heads may be repeated
  kOut,        // wo: columns by whole heads
  kWhole,      // norms, rope.freqs, the router of experts
};
Role role_of(std::string_view name);

// The place of a tensor in Meta's files; for stable sorting.
std::tuple<int, uint64_t, int> order_of(std::string_view name);

// The dimension that the model's embedding is cut along, if nothing else tells:
// 1 for Llama 1 and 2.
uint32_t embedding_dim(const std::optional<Params>& params);

// How `ranks` share a tensor if each holds a shard `local`. `width`: the
// model's dim, if known. Throws input_error if params contradict; nothing if no
// rule knows the tensor.
std::optional<formats::Cut> stored_cut(const std::string& path,
                                       std::string_view name,
                                       const Shape& local, uint32_t ranks,
                                       const std::optional<Params>& params,
                                       std::optional<uint64_t> width);

// How `ranks` should share a tensor. Throws unfaithful_error if they can't.
// `held`: the ranks that share the source's files, 1 for another format.
formats::Cut wanted_cut(const Catalog& source, const Tensor& tensor,
                        uint32_t ranks, uint32_t held,
                        const std::optional<Params>& params);

}  // namespace ckpt::meta
