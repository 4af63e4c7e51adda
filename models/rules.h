// SPDX-License-Identifier: Apache-2.0
// How the tensors of a model are split over tensor-parallel ranks: rules per
// model family (the fairseq2 part of models/families/*.json) or from the user.
//
//   Rules rules = Rules::from_file("rules.json")
//                     .over(Rules::for_family("llama", config, "model.yaml"));
//   apply(catalog, rules);   // sets Tensor::tp and Tensor::dp_replicated
//
// A family file has an ordered list. The first rule whose pattern matches the
// whole key decides; a key that matches none is replicated:
//   {"match": "final_proj\\.weight", "dim": 0,
//    "if": {"field": "shard_embed_dim", "equals": true}, "groups": 16}
// A user's file is an object in order, first match wins; what it leaves open
// goes to the family's rules:
//   {"*.embed.weight": 0, "*norm*": null, "*.experts.w2": {"dim": 0,
//    "groups": 16}}
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "models/config.h"

namespace ckpt::families {

class Rules {
 public:
  Rules();  // knows nothing

  // fairseq2's rules for that family. `source` says where the family's name was
  // found, for messages. Missing config fields get the family's defaults;
  // assumptions() lists them. Throws usage_error with a suggestion for an
  // unknown family.
  static Rules for_family(const std::string& family, const Config& config,
                          const std::string& source);
  // --shard-dims. Throws usage_error that names the key.
  static Rules from_file(const std::string& path);
  static bool is_family(std::string_view family);
  static std::vector<std::string> families();

  // These rules, with `below` for what they leave open.
  Rules over(Rules below) const;

  // kUnknown where nothing decides.
  TpRule tp(std::string_view key) const;
  // True if a rule splits the key; false for "no rule, so replicated".
  bool splits(std::string_view key) const;
  // Persistent buffers: whole in every data-parallel rank's file.
  bool buffer(std::string_view key) const;
  // Sets of keys that are one tensor.
  const std::vector<std::vector<std::string>>& tied() const;

  bool empty() const;                 // knows nothing
  const std::string& family() const;  // "" if the user's rules alone
  // "family llama (model.yaml)", "--shard-dims rules.json"
  std::string source() const;
  // Choices that no file states: defaults that decided a rule.
  const std::vector<std::string>& assumptions() const;

 private:
  struct Layer;
  std::vector<std::shared_ptr<const Layer>> layers_;  // first one first
  std::vector<std::string> assumptions_;
};

// Leaves Tensor::tp unchanged for keys that no rule decides. Optimizer state of
// its parameter's shape is split like the parameter. Throws unfaithful_error
// for a dimension that a tensor lacks. A family's rules don't apply to names of
// another dialect: if they split no tensor, returns false.
bool apply(Catalog& catalog, const Rules& rules);

// The error for a tensor that must be split while no rule says how.
Error no_rule_error(const std::string& path, const Tensor& tensor,
                    const std::string& family, uint32_t tp);

}  // namespace ckpt::families
