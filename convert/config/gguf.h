// SPDX-License-Identifier: Apache-2.0
// GGUF's metadata and transformers' config.json, each from the other
// (models/families/gguf.json).
//
//   llama.block_count, llama.rope.freq_base …   ◄─►   config.json
//   rope_freqs.weight (Llama 3's scaled rope)   ◄─►   rope_scaling
//   tokenizer.ggml.*                            ◄─►   tokenizer.json …
#pragma once

#include <string>
#include <string_view>

#include "convert/config/facts.h"
#include "convert/config/values.h"
#include "convert/options.h"

namespace ckpt::families {

inline constexpr std::string_view kGguf = "gguf";
// Llama 3's scaled rope, which config.json says in numbers.
inline constexpr std::string_view kGgufRope = "rope_freqs.weight";

// What a GGUF file says about its model, as config.json would. Nothing for a
// file without an architecture. Throws unfaithful_error for what no model of
// transformers that is known computes.
Values values_of_gguf(const Catalog& catalog);

// Gives the catalog, whose tensors have ggml's names already, the metadata of a
// model with these facts, and rope_freqs.weight if its rope needs it; takes its
// tokenizer from the sidecars, or from --tokenizer-from. Throws
// unfaithful_error for a fact that the metadata can't say and --allow-unsaid
// does not name.
void add_gguf_metadata(const std::shared_ptr<const Family>& family,
                       const Facts& facts, const Json& config,
                       const TranslateOptions& options, Catalog& catalog);

// Gives the factors of a LoRA, which have ggml's names already, the metadata of
// an adapter for a base of that model_type.
void add_gguf_adapter(const std::string& model_type, double alpha,
                      Catalog& adapter);

// Adds the files of the tokenizer that the metadata have.
void add_gguf_tokenizer(Catalog& catalog);

// Norms of 16 bits that one is added to, and decays: computed in f32, as
// llama.cpp has them. The engine's would be rounded to 16 bits first.
void widen_gguf_numbers(Catalog& catalog);

// Throws input_error for decays that are no -exp(x).
void check_gguf_decays(const Catalog& catalog);

// Takes the metadata out of a catalog that became another dialect's.
void leave_gguf_metadata(Catalog& catalog);

// Gives f32 tensors the dtype of the model where it holds their numbers.
void narrow_gguf_tensors(Catalog& catalog);

}  // namespace ckpt::families
