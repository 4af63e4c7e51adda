// SPDX-License-Identifier: Apache-2.0
// Adapters: what training added to a base model, in files of its own or inside
// the base, in the names of any library (docs/adapters.md).
//
//   ckpt::Catalog base = ckpt::open("Llama-3-8B").catalog();
//   const auto held = ckpt::add_adapters(base, {{.path = "my-lora"}});
//   ckpt::run(base, {.format = "safetensors"}, "merged");
//
// Headers are read, and single numbers; factors when the sums are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/ckpt.h"

namespace ckpt {

// What an adapter's configuration says, and its tensors where it says nothing.
struct AdapterInfo {
  std::string kind;              // as PEFT calls it: "LORA", "IA3" …
  std::string names;             // whose: "peft", "kohya", "mlx", "bridge" …
  std::string base;              // the model that it was trained on, or ""
  std::optional<uint64_t> rank;  // of modules without one of their own
  std::optional<double> alpha;   // likewise; none where no file says it
  bool rslora = false;           // the scale is alpha / sqrt(rank)
  bool dora = false;
  std::vector<std::string> targets;  // target_modules: names, or an expression
  std::vector<std::string> saved;    // modules_to_save: whole in the adapter
};

// Nothing for what is no adapter, and for factors of PEFT's names without a
// configuration.
std::optional<AdapterInfo> adapter_of(const Catalog& catalog);

// Whose the names of an adapter are, as far as their translation goes: "hf" are
// PEFT's files, "live" is a model of PEFT's that was saved whole, "loose" a
// file whose configuration is beside it, "mcore" are Megatron-Bridge's and
// NeMo's, others are called as in AdapterInfo; "" if the tensors are not an
// adapter's alone.
std::string_view adapter_dialect(const Catalog& catalog);
// Whether such an adapter becomes PEFT's by the numbers of its base.
bool adapter_needs_base(std::string_view dialect);
// Whether adapters of any dialect become that one ("gguf"), by the numbers of
// their base.
bool dialect_takes_adapters(std::string_view dialect);
// A base with an adapter in it that is not added: the state dict of a live
// model.
bool has_adapter_inside(const Catalog& catalog);

struct AdapterOptions {
  std::optional<double> alpha;   // in the place of what the files say
  bool allow_nonfinite = false;  // values, and sums of them
  // The base's family and numbers, as for a conversion; keys of
  // adapter_config.json that are not known are refused if strict_config says
  // so. A base of another dialect gets transformers' names.
  Naming naming = {};
  // Called with what there is to say about each.
  std::function<void(const Problem&)> note = {};
};

struct AdapterUse {
  std::string path;   // a file or folder of any format
  double weight = 1;  // how much of it
};

// What the sums are computed from: hold it as long as the base's catalog, or a
// copy of it, is used.
using AdapterHold = std::shared_ptr<const void>;

// Adds adapters to the weights, one after the other, each sum rounded to the
// base's dtype. Tensors that change are computed as they are read. Throws
// unfaithful_error for what doesn't fit, or is not known to be a sum.
[[nodiscard]] AdapterHold add_adapters(Catalog& base,
                                       const std::vector<AdapterUse>& adapters,
                                       const AdapterOptions& options = {});
// The same for the one that is inside.
[[nodiscard]] AdapterHold add_adapter_inside(
    Catalog& base, const AdapterOptions& options = {});

// An adapter by itself in PEFT's names ("hf"), Megatron-Bridge's ("mcore") or
// llama.cpp's ("gguf"), with its configuration. `ranks`: the tensor-parallel
// ranks of a distributed checkpoint of Megatron's. naming.config_from names the
// base, where its numbers are needed.
Catalog translate_adapter(Catalog adapter, const std::string& dialect,
                          uint64_t ranks = 1,
                          const AdapterOptions& options = {});

}  // namespace ckpt
