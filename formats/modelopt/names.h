// SPDX-License-Identifier: Apache-2.0
// Which part of a model a tensor is, by its Hugging Face name, and which of the
// block files it is in. The rules are data: "modelopt" in the family files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "models/modelopt_section.h"

namespace ckpt::modelopt {

enum class Part : uint8_t { kOther, kEmbedding, kBlock, kNorm, kHead };

struct Place {
  Part part = Part::kOther;
  uint32_t block = 0;     // kBlock
  std::string_view rest;  // kBlock: the name after "layers.N."
};

enum class Half : uint8_t { kNone, kAttention, kFfn, kBoth };

struct Naming : families::ModeloptSection {
  std::string family;
  std::vector<std::string> model_types;

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
