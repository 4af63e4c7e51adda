// SPDX-License-Identifier: Apache-2.0
// config.json as another program's configuration tells it, by a table that is
// data (models/families/litgpt.json, gguf.json …):
//
//   keys       of the file, that change nothing
//   requires   [condition, what else holds]: no model of transformers does that
//   vars       "$name": expression
//   layers     the expression that counts them
//   common     config.json's keys for all models
//   models     [{"when": condition, "config": keys}]: the first that holds
#pragma once

#include <set>
#include <string>

#include "ckpt/catalog.h"
#include "models/expr.h"
#include "models/numbers.h"

namespace ckpt::families {

// The names in the table's expressions: keys of the file (a dot goes into an
// object), the table's own variables, l, the number of a layer, and shapes,
// those of the checkpoint's tensors by name.
class ToldScope : public Expr::Scope {
 public:
  ToldScope(const Json& table, const Json& file,
            const Catalog* catalog = nullptr)
      : table_(table), file_(file), catalog_(catalog) {}

  const Json& table() const { return table_; }
  const Json& value(const std::string& name) const override;
  Json eval(const std::string& text) const { return Expr(text).eval(*this); }
  bool holds(const std::string& text) const { return truthy(eval(text)); }
  // "=expression", literals, and {"each": "l", "of": expression} for a list of
  // all layers'; without what is null.
  Json made(const Json& entries);

 private:
  inline static const Json kNone;
  Json filled(const Json& entry);
  Json of_layers(const Json& entry);

  const Json& table_;
  const Json& file_;
  const Catalog* catalog_;
  Json layer_;
  mutable Json held_, shapes_;
};

// Null if it tells none; `unmet` then says what it requires, if it does.
Json told_config(ToldScope& scope, std::string* unmet);

// The keys that the table knows; `whole`: with what follows a dot.
std::set<std::string> told_keys(const Json& table, bool whole = false);

}  // namespace ckpt::families
