// SPDX-License-Identifier: Apache-2.0
// The numbers of one model on one side of a family: layers, heads, experts …
// from its configuration, by the family's variables.
//
//   side        reads
//   hf          config.json
//   mcore       Megatron's args
//   meta        params.json
//   fairseq2    the configuration in model.yaml
//   olmo_core   config.json
//   olmo_legacy config.yaml
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "models/family.h"
#include "models/key_kinds.h"

namespace ckpt::families {

using Indices = std::map<std::string, uint64_t, std::less<>>;  // {"l": 3}
using Overrides = std::map<std::string, std::string>;          // --set nh=32

class Numbers {
 public:
  // `values`: the configuration, an object. `source`: its file, for messages.
  // `overrides`: of variables, without their $, or of names that the family's
  // expressions have. Throws usage_error for others, with a suggestion.
  Numbers(std::shared_ptr<const Family> family, const Dialect& dialect,
          std::string side, Json values, std::string source,
          const Overrides& overrides = {});
  ~Numbers();
  Numbers(Numbers&&) noexcept;

  // More expressions will be evaluated: what they say of the keys. A value of
  // another kind than `kinds` has is an error that names its key.
  void expect(KeyKinds kinds) { kinds_ = std::move(kinds); }

  // The value of an expression. Throws unfaithful_error naming a missing
  // number, where it was looked for, and --set.
  Json eval(const std::string& expression, const Indices& at = {}) const;
  // The same, with the names that it was computed from: "rope_theta, --set V".
  Json eval(const std::string& expression, const Indices& at,
            std::string& from) const;
  bool holds(const std::string& condition, const Indices& at = {}) const;
  // The same, for a whole number of at most 2^48; `what` it is for.
  uint64_t whole(const std::string& expression, const Indices& at,
                 std::string_view what) const;
  // A parameter of an operation: a number, or text that is an expression.
  // `fallback` if it is not given.
  uint64_t whole(const Op& op, const char* param, const char* fallback,
                 const Indices& at) const;
  // "decoder.layers.{l}.x" with its expressions' values.
  std::string fill(const std::string& name, const Indices& at) const;
  // How many values an index has; 0 for one whose number is null.
  uint64_t count(const std::string& index) const;

  const std::string& side() const { return side_; }
  const std::string& source() const { return source_; }
  const Family& family() const { return *family_; }
  const Dialect& dialect() const { return *dialect_; }
  // Adds a variable that this side does not state, from another side: `from`
  // says where it was found.
  void complete(const std::string& variable, Json value, std::string from);
  // The values used so far that depend on no index, and their sources: "heads
  // $nh = 32 (config.json num_attention_heads)".
  std::vector<std::string> used() const;

 private:
  class Scope;
  struct Use {
    Json value;
    std::string from;
  };
  const Expr& parsed(const std::string& text) const;
  const Json* override_of(const std::string& name) const;
  const Json& lookup(const std::string& dotted) const;
  void check_known(const std::string& name, const Json& value) const;
  bool is_count(const std::string& name) const;
  void check_kind(const std::string& name, const Json& value) const;
  Json variable(const std::string& name, const Scope& scope) const;

  std::shared_ptr<const Family> family_;
  const Dialect* dialect_;
  std::string side_;
  Json values_;
  std::string source_;
  std::map<std::string, Json, std::less<>> overrides_;
  KeyKinds kinds_;
  // Not for several threads at once.
  mutable std::unordered_map<std::string, std::unique_ptr<Expr>> parsed_;
  mutable std::map<std::string, Use> used_;
  mutable std::set<const Json*> checked_;  // of values_, which stay
  mutable uint32_t steps_ = 0;  // variables that one eval() asked for
};

// A table of the family's ("config", "hf_config"): literals, "=expression",
// and {"each": "l", "of": "expression"} for a list. Nulls are left out.
Json config_table(const Json& table, const Numbers& numbers);

}  // namespace ckpt::families
