// SPDX-License-Identifier: Apache-2.0
// Meta's own Llama checkpoints, and Mistral's, which have the same names.
//
//   params.json             dim, n_layers, n_heads, n_kv_heads, vocab_size …
//   consolidated.00.pth     one flat dict of tensors for each model-parallel
//   consolidated.01.pth     rank: its rows or columns, norms whole in each
//   tokenizer.model         carried
//   checklist.chk           MD5 sums of the others; not written: they would
//                           be those of other files
//
// Mistral's newer ones are one file, consolidated.safetensors.
//
//   tok_embeddings.weight             dim 1 (Llama 1, 2) or dim 0 (Llama 3)
//   output, wq, wk, wv, w1, w3        dim 0; wq, wk, wv by whole heads
//   wo, w2                            dim 1; wo by whole heads
//   *norm.weight, rope.freqs          whole in each file
//
// With more ranks than key/value heads, neighbouring ranks hold the same
// head: rank r has head r * n_kv_heads / ranks, the one that its query heads
// attend with.
//
// What the writer expects of a source in another format, whose tensors were
// given Meta's names and arrangement (rotary rows in pairs):
//
//   Catalog::dialect   "meta", or "" if the names are Meta's already
//   Catalog::tensors   whole, names as above; of others Tensor::tp counts
//   Object "params"    a dict, written as params.json; else the sidecar
//                      params.json is copied
//
// The head counts come from there; without them no tensor of heads is cut finer
// than in the source. If the source is not `meta`, embeddings are cut along
// dimension 1 if vocab_size is -1, as only in Llama 1 and 2, and along 0
// otherwise; if it is, as they are there, or as --shard-dims says.
#pragma once

#include <memory>
#include <string_view>

#include "formats/format.h"

namespace ckpt::meta {

inline constexpr std::string_view kFormat = "meta";
inline constexpr std::string_view kParams = "params.json";
inline constexpr std::string_view kParamsObject = "params";
inline constexpr std::string_view kChecklist = "checklist.chk";
inline constexpr std::string_view kOneFile = "consolidated.safetensors";

// Catalog::version: the container.
inline constexpr std::string_view kPickled = "pth";
inline constexpr std::string_view kSafetensors = "safetensors";

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::meta
