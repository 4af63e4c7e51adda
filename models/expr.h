// SPDX-License-Identifier: Apache-2.0
// The expressions of family files: sizes, conditions and names, computed from
// the numbers of a model's configuration.
//
//   tie_word_embeddings ?? false
//   ceil_to(int(8 * dim / 3.0), multiple_of)
//   $moe && pick(layer_types, l) == 'linear_attention'
//
//   low to high   ? :   ??   ||   &&   == != < <= > >=   + -   * / %   ! -
//
// Numbers, 'strings', true, false, null; names of the configuration (dotted:
// rope_parameters.rope_theta), $variables, indices. An undefined name is null;
// `a ?? b` is a unless that is null. Integers stay integers: 64 bits, checked,
// and `/` must be exact. In ||, &&, ! and ?: null, false, 0, '' and [] are
// false.
//
//   has(list, x)    is x in the list, or in the text? A null list is empty
//   pick(x, i)      a switch for each layer: x[i] of a list; 1 where i % x is
//                   0, else 0, of a whole number; 1 for null; the character
//                   at i of a text; the member x[i] of an object, null if it
//                   has none
//   json(x)         the value of a text in JSON; null for anything but a text
//   is_list(x)      whether it is one
//   without(x, cs)  a text without the characters of another
//   first1(list)    where the first 1 is; 0 for anything but a list
//   int(x)          without the part behind the point
//   sqrt(x)         of a number of at least 0
//   ceil_to(x, m)   x rounded up to a multiple of m
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::families {

using Json = nlohmann::json;

// True for what an expression says of values that no model has together: 33
// columns of 4 heads, kinds for two layers of three. (What is absent may only
// not be said.)
bool is_contradiction(std::string_view problem);

class Expr {
 public:
  // Looks names up. The reference is valid until the next call; null for
  // undefined names.
  class Scope {
   public:
    virtual ~Scope() = default;
    virtual const Json& value(const std::string& name) const = 0;
  };

  // Throws usage_error "… at character 7": also for text over 4,096 bytes or
  // nested deeper than 64.
  explicit Expr(std::string_view text);
  ~Expr();
  Expr(Expr&&) noexcept;
  Expr& operator=(Expr&&) noexcept;

  // Throws unfaithful_error for an expression without a value: arithmetic on
  // null or texts, an inexact division, a list without that element, a number
  // compared with a 'text'.
  Json eval(const Scope& scope) const;
  const std::string& text() const { return text_; }
  // What its values can be, as far as its literals and operators say: a sum of
  // these. kAny: what a name holds.
  enum Kinds : uint8_t {
    kNumber = 1,
    kFlag = 2,
    kText = 4,
    kAny = 8,
    kList = 16,
    kObject = 32,
  };
  uint8_t kinds() const;
  // The names in it, $variables and indices included, in order, unique.
  const std::vector<std::string>& names() const { return names_; }

 private:
  friend class ExprParser;
  friend class ExprRun;
  friend class ExprUses;
  struct Node;
  static uint8_t kinds_of(const Node& node);
  std::string text_;
  std::vector<std::string> names_;
  std::unique_ptr<Node> root_;
};

// Truth as in || && ! and ?:.
bool truthy(const Json& value);

}  // namespace ckpt::families
