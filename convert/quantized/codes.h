// SPDX-License-Identifier: Apache-2.0
// Which tensors of a model are codes, scales and the like, and of what weights:
// the weights are what a model has, whatever they are stored as.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ckpt/catalog.h"
#include "ckpt/error.h"

namespace ckpt::families {

// "model.layers.0.q_proj" of "model.layers.0.q_proj.weight"; "" of "weight".
std::string_view parent_module(std::string_view name);

class Codes {
 public:
  // Names, dtypes and shapes are looked at, the configuration, and of located
  // tensors those few that describe others.
  explicit Codes(const Catalog& source);

  // True if anything is quantized, or said to be.
  explicit operator bool() const { return quantized_; }
  // Why the codes that the configuration announces can't be told; else "".
  const std::string& open() const { return open_; }
  // What the codes of a known kind lack, or what doesn't fit them.
  const std::optional<Error>& broken() const { return broken_; }
  // Weights by name.
  const std::unordered_map<std::string, Shape>& weights() const {
    return weights_;
  }
  // True for a tensor that a weight is made of.
  bool is_part(std::string_view name) const { return parts_.contains(name); }
  // True if a weight of that name in another layer is made of codes.
  bool has_like(std::string_view name) const;
  // True for what is in a module that has a quantized weight. Where none is
  // known, any may be.
  bool belongs(std::string_view name) const;

 private:
  bool quantized_ = false;
  std::string open_;
  std::optional<Error> broken_;
  std::unordered_map<std::string, Shape> weights_;
  std::set<std::string, std::less<>> parts_;
};

}  // namespace ckpt::families
