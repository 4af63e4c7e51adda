// SPDX-License-Identifier: Apache-2.0
#include "models/expr.h"

#include <algorithm>
#include <cmath>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "models/expr_node.h"

namespace ckpt::families {
namespace {

// 2^63: the first number that int64_t does not hold.
constexpr double kTooLarge = 9223372036854775808.0;
constexpr std::string_view kIndivisible = " is not divisible by ";
constexpr std::string_view kNoElement = "pick: element ";

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

[[noreturn]] void overflow() {
  throw unfaithful_error({}, "a number that 64 bits do not hold");
}

int64_t whole(const Json& value) {
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    overflow();
  return value.get<int64_t>();
}

bool is_whole(const Json& value) { return value.is_number_integer(); }

// true is 1, as in Python: a list may hold either.
Json plain(const Json& value) {
  return value.is_boolean() ? Json(value.get<bool>() ? 1 : 0) : value;
}

bool equal(const Json& a, const Json& b) {
  if (a.is_boolean() != b.is_boolean()) return plain(a) == plain(b);
  return a == b;
}

const char* kind_of(const Json& literal) {
  return literal.is_string() ? "a text" : "a number";
}

// A value that can't be what a literal is makes neither answer right.
void check_comparable(const Json& literal, const Json& value) {
  // False is absent, too.
  if (value.is_null() || value == Json(false)) return;
  if (literal.is_null() || literal.is_boolean()) return;
  if (literal == Json("auto")) return;  // or a number: mamba_d_head
  const bool text = literal.is_string();
  if (text ? value.is_string() : value.is_number() || value.is_boolean())
    return;
  throw unfaithful_error({}, "{}, expected {}", shown(value), kind_of(literal));
}

bool compare(const std::string& op, const Json& a, const Json& b) {
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  const bool texts = a.is_string() && b.is_string();
  if (!texts && !(a.is_number() && b.is_number()))
    throw unfaithful_error({}, "{} {} {} compares what has no order", shown(a),
                           op, shown(b));
  if (op == "<") return a < b;
  if (op == "<=") return a <= b;
  if (op == ">") return a > b;
  return a >= b;
}

int64_t divide(int64_t a, int64_t b) {
  if (b == 0) throw unfaithful_error({}, "{} / 0", a);
  if (a == INT64_MIN && b == -1) overflow();
  if (a % b != 0) throw unfaithful_error({}, "{}{}{}", a, kIndivisible, b);
  return a / b;
}

// Has the divisor's sign, as in Python.
int64_t modulo(int64_t a, int64_t b) {
  if (b == 0) throw unfaithful_error({}, "{} % 0", a);
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Json whole_arithmetic(char op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool failed = false;
  switch (op) {
    case '+':
      failed = __builtin_add_overflow(a, b, &result);
      break;
    case '-':
      failed = __builtin_sub_overflow(a, b, &result);
      break;
    case '*':
      failed = __builtin_mul_overflow(a, b, &result);
      break;
    case '/':
      return divide(a, b);
    default:
      return modulo(a, b);
  }
  if (failed) overflow();
  return result;
}

Json real_arithmetic(char op, double a, double b) {
  if ((op == '/' || op == '%') && b == 0)
    throw unfaithful_error({}, "{} {} 0", a, op);
  switch (op) {
    case '+':
      return a + b;
    case '-':
      return a - b;
    case '*':
      return a * b;
    case '/':
      return a / b;
    default:
      return a - b * std::floor(a / b);
  }
}

Json arithmetic(const std::string& op, const Json& a, const Json& b) {
  for (const Json* side : {&a, &b})
    if (!side->is_number())
      throw unfaithful_error({}, "{} is not a number", shown(*side));
  if (is_whole(a) && is_whole(b))
    return whole_arithmetic(op[0], whole(a), whole(b));
  return real_arithmetic(op[0], a.get<double>(), b.get<double>());
}

Json has(const Json& list, const Json& wanted) {
  if (list.is_null()) return false;
  if (list.is_string() && wanted.is_string())
    return list.get_ref<const std::string&>().find(
               wanted.get_ref<const std::string&>()) != std::string::npos;
  if (!list.is_array())
    throw unfaithful_error({}, "has: {} is not a list", shown(list));
  return std::ranges::any_of(
      list, [&](const Json& item) { return equal(item, wanted); });
}

Json pick(const Json& from, const Json& at) {
  if (at.is_string()) {  // a member
    if (from.is_null()) return from;
    if (!from.is_object())
      throw unfaithful_error({}, "pick: {} is not an object", shown(from));
    const auto member = from.find(at.get_ref<const std::string&>());
    return member == from.end() ? Json() : *member;
  }
  if (from.is_null()) return 1;
  if (!is_whole(at) || whole(at) < 0)
    throw unfaithful_error({}, "pick: {} is not an index", shown(at));
  if (from.is_array()) {
    const uint64_t index = at.get<uint64_t>();
    if (index >= from.size())
      throw unfaithful_error({}, "{}{} of a list of {}", kNoElement, index,
                             from.size());
    return from[index];
  }
  if (from.is_string()) {  // one character of it
    const auto& text = from.get_ref<const std::string&>();
    if (at.get<uint64_t>() >= text.size())
      throw unfaithful_error({}, "pick: character {} of a text of {}",
                             at.get<uint64_t>(), text.size());
    return std::string(1, text[at.get<uint64_t>()]);
  }
  if (!is_whole(from))
    throw unfaithful_error({}, "pick: {} is neither a list nor a whole number",
                           shown(from));
  return modulo(whole(at), whole(from)) == 0 ? 1 : 0;
}

// A configuration inside another: Megatron's heterogeneous layers.
Json parsed(const Json& text) {
  if (!text.is_string()) return nullptr;
  return text::parse_json(text.get_ref<const std::string&>(), "json(…)");
}

Json length(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().size();
  return value.is_array() ? value.size() : 0;
}

Json without(const Json& value, const Json& characters) {
  if (!value.is_string() || !characters.is_string()) return value;
  auto text = value.get<std::string>();
  std::erase_if(text, [&](char c) {
    return characters.get_ref<const std::string&>().find(c) !=
           std::string::npos;
  });
  return text;
}

// How many zeros a list begins with, for layers without experts.
Json first1(const Json& list) {
  if (!list.is_array()) return 0;
  for (size_t i = 0; i < list.size(); ++i)
    if (equal(list[i], 1)) return i;
  return list.size();
}

Json truncated(const Json& value) {
  if (is_whole(value)) return value;
  if (!value.is_number())
    throw unfaithful_error({}, "int: {} is not a number", shown(value));
  const double real = std::trunc(value.get<double>());
  if (!(real > -kTooLarge && real < kTooLarge)) overflow();
  return static_cast<int64_t>(real);
}

Json ceil_to(const Json& value, const Json& multiple) {
  if (!is_whole(value) || !is_whole(multiple) || whole(multiple) <= 0 ||
      whole(value) < 0)
    throw unfaithful_error({}, "ceil_to: {} to a multiple of {}", shown(value),
                           shown(multiple));
  const int64_t rest = whole(value) % whole(multiple);
  if (rest == 0) return whole(value);
  return whole_arithmetic('+', whole(value), whole(multiple) - rest);
}

Json root_of(const Json& value) {
  if (!value.is_number() || value.get<double>() < 0)
    throw unfaithful_error({}, "sqrt of {}", shown(value));
  return std::sqrt(value.get<double>());
}

}  // namespace

bool is_contradiction(std::string_view problem) {
  return problem.find(kIndivisible) != problem.npos ||
         problem.find(kNoElement) != problem.npos;
}

bool truthy(const Json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_float()) return value.get<double>() != 0;
  if (value.is_number()) return value != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

// Stored values are passed by reference: a configuration's lists may be long.
class ExprRun {
 public:
  using Node = Expr::Node;
  explicit ExprRun(const Expr::Scope& scope) : scope_(scope) {}

  Json value(const Node& node) {
    switch (node.kind) {
      case ExprKind::kLiteral:
        return node.literal;
      case ExprKind::kName:
        return scope_.value(node.text);
      case ExprKind::kChoice:
        return value(node.args[holds(node.args[0]) ? 1 : 2]);
      case ExprKind::kUnary:
        return unary(node);
      case ExprKind::kCall:
        return call(node);
      default:
        return binary(node);
    }
  }

 private:
  bool holds(const Node& node) {
    if (node.kind == ExprKind::kName) return truthy(scope_.value(node.text));
    return truthy(value(node));
  }

  // An operand of arithmetic; the error says which name has no value.
  Json operand(const Node& node) {
    Json result = value(node);
    if (result.is_null() && node.kind == ExprKind::kName)
      throw unfaithful_error({}, "{} is missing", text::printable(node.text));
    return result;
  }

  Json unary(const Node& node) {
    if (node.text == "!") return !holds(node.args[0]);
    return arithmetic("-", 0, operand(node.args[0]));
  }

  Json binary(const Node& node) {
    const std::string& op = node.text;
    const Node& left = node.args[0];
    const Node& right = node.args[1];
    if (op == "??") {
      Json first = value(left);
      return first.is_null() ? value(right) : first;
    }
    if (op == "||") return holds(left) || holds(right);
    if (op == "&&") return holds(left) && holds(right);
    if (op == "==" || op == "!=") {
      const Json a = value(left), b = value(right);
      if (left.kind == ExprKind::kLiteral) check_comparable(a, b);
      if (right.kind == ExprKind::kLiteral) check_comparable(b, a);
      return compare(op, a, b);
    }
    const Json a = operand(left);
    const Json b = operand(right);
    if (op[0] == '<' || op[0] == '>') return compare(op, a, b);
    return arithmetic(op, a, b);
  }

  Json call(const Node& node) {
    if (node.text == "int") return truncated(operand(node.args[0]));
    if (node.text == "sqrt") return root_of(operand(node.args[0]));
    if (node.text == "ceil_to")
      return ceil_to(operand(node.args[0]), operand(node.args[1]));
    // The second argument first: a reference into the scope is valid only until
    // the next name is looked up.
    const Json second = node.args.size() == 2 ? value(node.args[1]) : Json();
    const Json* first = nullptr;
    Json own;
    if (node.args[0].kind == ExprKind::kName) {
      first = &scope_.value(node.args[0].text);
    } else {
      own = value(node.args[0]);
      first = &own;
    }
    if (node.text == "has") return has(*first, second);
    if (node.text == "pick") return pick(*first, second);
    if (node.text == "json") return parsed(*first);
    if (node.text == "is_list") return first->is_array();
    if (node.text == "length") return length(*first);
    if (node.text == "without") return without(*first, second);
    return first1(*first);
  }

  const Expr::Scope& scope_;
};

uint8_t Expr::kinds_of(const Node& node) {
  const auto either = [](const Node& a, const Node& b) {
    return static_cast<uint8_t>(kinds_of(a) | kinds_of(b));
  };
  switch (node.kind) {
    case ExprKind::kLiteral:
      if (node.literal.is_null()) return 0;
      if (node.literal.is_string()) return kText;
      return node.literal.is_boolean() ? kFlag : kNumber;
    case ExprKind::kName:
      return kAny;
    case ExprKind::kChoice:
      return either(node.args[1], node.args[2]);
    case ExprKind::kUnary:
      return node.text == "!" ? kFlag : kNumber;
    case ExprKind::kCall:
      if (node.text == "has" || node.text == "is_list") return kFlag;
      return node.text == "pick" || node.text == "json" ||
                     node.text == "without"
                 ? kAny
                 : kNumber;
    default:
      break;
  }
  if (node.text == "??") {
    // `name ?? literal`: the default says what the name is.
    const uint8_t second = kinds_of(node.args[1]);
    const uint8_t first = kinds_of(node.args[0]);
    return first == kAny && second != 0 ? second : first | second;
  }
  const bool arithmetic =
      node.text.size() == 1 &&
      std::string_view("+-*/%").find(node.text[0]) != std::string_view::npos;
  return arithmetic ? kNumber : kFlag;
}

uint8_t Expr::kinds() const { return kinds_of(*root_); }

Json Expr::eval(const Scope& scope) const {
  return ExprRun(scope).value(*root_);
}

}  // namespace ckpt::families
