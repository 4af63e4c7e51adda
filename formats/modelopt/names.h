// SPDX-License-Identifier: Apache-2.0
// Which part of a model a tensor is, by its Hugging Face name, and which of the
// block files it is in. The tables are data: modelopt_names.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/text/glob.h"

namespace ckpt::modelopt {

enum class Part : uint8_t { kOther, kEmbedding, kBlock, kNorm, kHead };

struct Place {
  Part part = Part::kOther;
  uint32_t block = 0;     // kBlock
  std::string_view rest;  // kBlock: the name after "layers.N."
};

enum class Half : uint8_t { kNone, kAttention, kFfn, kBoth };

struct Naming {
  std::string family;
  std::vector<std::string> model_types;
  std::string layers;  // "model.layers."
  std::vector<std::string> embedding, norm, head;
  std::vector<text::Glob> attention, ffn;  // of Place::rest
  // Groups of tensors in no block: name of the group, names of the tensors.
  std::vector<std::pair<std::string, std::vector<text::Glob>>> groups;
  // The name in a block that both halves have; a half with nothing else has no
  // file.
  std::string shared;
  std::vector<std::string> order;  // prefixes of Place::rest, as in the model

  Place place(std::string_view name) const;
  // Which half of its block a tensor is; kNone: no rule knows it.
  Half half(std::string_view rest) const;
  // A tensor's place in its block, in the model's order.
  size_t rank(std::string_view rest) const;
};

// The naming of a model type; null for an unknown type.
const Naming* find_naming(std::string_view model_type);

// The naming that the catalog's tensors follow: its family's, else the first
// whose layers occur among the names, else llama's.
const Naming& naming_of(const Catalog& catalog);

}  // namespace ckpt::modelopt
