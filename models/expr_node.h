// SPDX-License-Identifier: Apache-2.0
// The tree of an expression.
#pragma once

#include <string>
#include <vector>

#include "models/expr.h"

namespace ckpt::families {

enum class ExprKind : uint8_t {
  kLiteral,  // literal
  kName,     // text
  kUnary,    // text: ! -
  kBinary,   // text: ?? || && == != < <= > >= + - * / %
  kChoice,   // args: condition, then, else
  kCall,     // text: the function
};

struct Expr::Node {
  ExprKind kind = ExprKind::kLiteral;
  std::string text;
  Json literal;
  std::vector<Node> args;
};

// How many arguments a function takes; 0 for an unknown function.
size_t function_arity(std::string_view name);

}  // namespace ckpt::families
