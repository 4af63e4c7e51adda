// SPDX-License-Identifier: Apache-2.0
#include "models/key_kinds.h"

#include <array>

#include "models/expr_node.h"

namespace ckpt::families {
namespace {

constexpr uint8_t kNothing = 0;
constexpr uint8_t kSize = Expr::kNumber;
// It is asked whether the key is there: of itself, no kind.
constexpr uint8_t kPresent = 64;

struct KindName {
  uint8_t kind;
  const char* name;
};
constexpr auto kKindNames = std::to_array<KindName>({
    {Expr::kNumber, "a number"},
    {Expr::kFlag, "true or false"},
    {Expr::kText, "a text"},
    {Expr::kList, "a list"},
    {Expr::kObject, "an object"},
});

uint8_t kind_of_value(const Json& value) {
  if (value.is_boolean()) return Expr::kFlag;
  if (value.is_number()) return Expr::kNumber;
  if (value.is_string()) return Expr::kText;
  return value.is_array() ? Expr::kList : Expr::kObject;
}

}  // namespace

// Goes through a tree and notes how each name is used.
class ExprUses {
 public:
  using Node = Expr::Node;
  explicit ExprUses(std::map<std::string, uint8_t, std::less<>>& kinds)
      : kinds_(kinds) {}

  void read(const Expr& expression, uint8_t result) {
    const Node& root = *expression.root_;
    visit(root, static_cast<uint8_t>(result | literals(root)));
  }

  static uint8_t result_of(const Expr& expression) {
    return literals(*expression.root_);
  }

 private:
  // `wanted`: the kinds that the node's value is used as.
  void visit(const Node& node, uint8_t wanted) {
    switch (node.kind) {
      case ExprKind::kLiteral:
        return;
      case ExprKind::kName:
        return name(node.text, wanted);
      case ExprKind::kChoice:
        visit(node.args[0], Expr::kFlag);
        visit(node.args[1], wanted);
        visit(node.args[2], wanted);
        return;
      case ExprKind::kUnary:
        visit(node.args[0], node.text == "!" ? Expr::kFlag : Expr::kNumber);
        return;
      case ExprKind::kCall:
        return call(node);
      default:
        return binary(node, wanted);
    }
  }

  static uint8_t literals(const Node& node) {
    return static_cast<uint8_t>(Expr::kinds_of(node) & ~Expr::kAny);
  }

  void name(const std::string& key, uint8_t wanted) {
    if (key.starts_with("trait.")) return;  // what the family's file says
    kinds_[key] |= wanted;
    for (size_t dot = key.find('.'); dot != key.npos;
         dot = key.find('.', dot + 1))
      kinds_[key.substr(0, dot)] |= Expr::kObject;
  }

  void binary(const Node& node, uint8_t wanted) {
    const std::string& op = node.text;
    if (op == "??") {
      // In a chain each name is what the chain's literals are.
      const auto kinds = static_cast<uint8_t>(wanted | literals(node));
      return both(node, kinds, kinds);
    }
    if (op == "&&" || op == "||") return both(node, Expr::kFlag, Expr::kFlag);
    if (op == "==" || op == "!=")
      return both(node, compared(node.args[1]), compared(node.args[0]));
    both(node, Expr::kNumber, Expr::kNumber);
  }

  static uint8_t compared(const Node& other) {
    const bool null =
        other.kind == ExprKind::kLiteral && other.literal.is_null();
    return null ? kPresent : literals(other);
  }

  void both(const Node& node, uint8_t left, uint8_t right) {
    visit(node.args[0], left);
    visit(node.args[1], right);
  }

  void call(const Node& node) {
    const std::string& function = node.text;
    uint8_t first = Expr::kNumber;
    if (function == "has" || function == "length")
      first = Expr::kList | Expr::kText;
    if (function == "pick") first = picked(node.args[1]);
    if (function == "is_list") first = Expr::kList;
    if (function == "first1") first = Expr::kList | Expr::kNumber;
    if (function == "json" || function == "without") first = Expr::kText;
    visit(node.args[0], first);
    if (node.args.size() == 2)
      visit(node.args[1], function == "ceil_to" ? kSize : kNothing);
  }

  // pick(x, l) takes a list or a whole number, and a text that something else
  // takes for one; of a member, an object.
  static uint8_t picked(const Node& at) {
    const bool index = at.kind == ExprKind::kName && at.text.size() == 1;
    const uint8_t listed = Expr::kList | Expr::kNumber;
    return index ? listed : static_cast<uint8_t>(listed | Expr::kObject);
  }

  std::map<std::string, uint8_t, std::less<>>& kinds_;
};

void KeyKinds::read(const Expr& expression, uint8_t result) {
  ExprUses(kinds_).read(expression, result);
}

void KeyKinds::read(const Dialect& dialect, const std::string& side) {
  // A variable is of one kind, whichever side defines it: that of
  // {"hf": "bias ?? false", "mcore": "add_bias_linear"} is a switch.
  for (const auto& [name, definition] : dialect.vars)
    for (const auto& [at, text] : definition)
      kinds_[name] |= ExprUses::result_of(Expr(text));
  // A variable is used before or after it is defined, and others use it: what
  // it is used as reaches the keys in as many rounds as variables are nested.
  constexpr int kRounds = 3;
  for (int round = 0; round < kRounds; ++round)
    for (const auto& [name, definition] : dialect.vars) {
      auto found = definition.find(side);
      if (found == definition.end()) found = definition.find("");
      if (found == definition.end()) continue;
      const auto used = kinds_.find(name);
      read(Expr(found->second), used == kinds_.end() ? kNothing : used->second);
    }
}

std::string KeyKinds::expected(std::string_view key, const Json& value) const {
  const auto found = kinds_.find(key);
  if (found == kinds_.end() || value.is_null()) return "";
  // What nothing says is a size, as all but a few values of configurations are.
  if (found->second == kNothing)
    return value.is_number() || value == Json(false) ? "" : "a whole number";
  if (found->second == kPresent) return "";
  uint8_t may = found->second;
  if ((may & Expr::kFlag) != 0) may |= Expr::kNumber;  // 1 is True in Python
  // False switches off what has a number, a text or a list, too.
  if (value == Json(false) || (may & kind_of_value(value)) != 0) return "";
  std::string all;
  for (const KindName& one : kKindNames)
    if ((found->second & one.kind) != 0)
      all += (all.empty() ? "" : " or ") + std::string(one.name);
  return all;
}

}  // namespace ckpt::families
