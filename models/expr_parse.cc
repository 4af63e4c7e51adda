// SPDX-License-Identifier: Apache-2.0
// From text to tree by precedence climbing.
#include <algorithm>
#include <array>
#include <charconv>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "lib/text/suggest.h"
#include "models/expr_node.h"

namespace ckpt::families {
namespace {

constexpr size_t kMaxText = 4096;
constexpr size_t kMaxDepth = 64;

// Longer ones first: "??" is not two "?".
constexpr auto kSigns = std::to_array<std::string_view>(
    {"??", "||", "&&", "==", "!=", "<=", ">=", "-", "+", "*",
     "/",  "%",  "<",  ">",  "!",  "?",  ":",  "(", ")", ","});

struct Level {
  std::string_view sign;
  int binds;  // more binds closer
};
constexpr auto kLevels = std::to_array<Level>({{"??", 1},
                                               {"||", 2},
                                               {"&&", 3},
                                               {"==", 4},
                                               {"!=", 4},
                                               {"<", 4},
                                               {"<=", 4},
                                               {">", 4},
                                               {">=", 4},
                                               {"+", 5},
                                               {"-", 5},
                                               {"*", 6},
                                               {"/", 6},
                                               {"%", 6}});

int binding(std::string_view sign) {
  const auto level = std::ranges::find(kLevels, sign, &Level::sign);
  return level == kLevels.end() ? 0 : level->binds;
}

using text::is_digit;
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

}  // namespace

struct Function {
  std::string_view name;
  size_t arity;
};
constexpr auto kFunctions = std::to_array<Function>({{"has", 2},
                                                     {"pick", 2},
                                                     {"first1", 1},
                                                     {"length", 1},
                                                     {"is_list", 1},
                                                     {"json", 1},
                                                     {"without", 2},
                                                     {"int", 1},
                                                     {"ceil_to", 2},
                                                     {"sqrt", 1}});

size_t function_arity(std::string_view name) {
  const auto found = std::ranges::find(kFunctions, name, &Function::name);
  return found == kFunctions.end() ? 0 : found->arity;
}

class ExprParser {
 public:
  using Node = Expr::Node;

  explicit ExprParser(Expr& expr) : expr_(expr), text_(expr.text_) {
    if (text_.size() > kMaxText)
      throw usage_error({}, "an expression of {} bytes, at most {} are read",
                        text_.size(), kMaxText);
    next();
  }

  Node parse() {
    Node root = choice();
    if (token_.kind != Token::kEnd) fail("expected an operator or the end");
    return root;
  }

 private:
  struct Token {
    enum Kind : uint8_t { kEnd, kNumber, kString, kName, kSign };
    Kind kind = kEnd;
    std::string_view text;
    size_t at = 0;
  };

  [[noreturn]] void fail(std::string_view why) const {
    throw usage_error({}, "expression \"{}\": {} at character {}",
                      text::printable(text_), why, token_.at + 1);
  }

  // Held by each parser of a nested part.
  class Depth {
   public:
    explicit Depth(ExprParser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxDepth) parser_.fail("nested too deep");
    }
    ~Depth() { --parser_.depth_; }

   private:
    ExprParser& parser_;
  };

  size_t end_of_name(size_t from) const {
    size_t end = from;
    const auto word = [&] {
      while (end < text_.size() &&
             (starts_name(text_[end]) || is_digit(text_[end])))
        ++end;
    };
    word();
    while (end + 1 < text_.size() && text_[end] == '.' &&
           starts_name(text_[end + 1])) {
      ++end;
      word();
    }
    return end;
  }

  size_t end_of_number(size_t from) const {
    size_t end = from;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1]))
      for (++end; end < text_.size() && is_digit(text_[end]);) ++end;
    return end;
  }

  void take(Token::Kind kind, size_t end) {
    token_.kind = kind;
    token_.text = text_.substr(token_.at, end - token_.at);
    at_ = end;
  }

  void next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' ||
                                  text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
    token_.at = at_;
    if (at_ == text_.size()) return take(Token::kEnd, at_);
    const char c = text_[at_];
    if (is_digit(c)) return take(Token::kNumber, end_of_number(at_));
    if (c == '$' || starts_name(c)) {
      if (c == '$' && (at_ + 1 == text_.size() || !starts_name(text_[at_ + 1])))
        fail("expected a name after $");
      return take(Token::kName, end_of_name(at_ + 1));
    }
    if (c == '\'') {
      const size_t end = text_.find('\'', at_ + 1);
      if (end == text_.npos) fail("a text without its closing '");
      return take(Token::kString, end + 1);
    }
    for (const std::string_view sign : kSigns)
      if (text_.substr(at_).starts_with(sign))
        return take(Token::kSign, at_ + sign.size());
    fail("expected a number, a name or a text");
  }

  bool sees(std::string_view sign) const {
    return token_.kind == Token::kSign && token_.text == sign;
  }
  bool accept(std::string_view sign) {
    if (!sees(sign)) return false;
    next();
    return true;
  }
  void expect(std::string_view sign) {
    if (!accept(sign)) fail(fmt::format("expected '{}'", sign));
  }

  Node choice() {
    const Depth depth(*this);
    Node condition = binary(1);
    if (!accept("?")) return condition;
    Node node{ExprKind::kChoice, {}, {}, {}};
    node.args.push_back(std::move(condition));
    node.args.push_back(choice());
    expect(":");
    node.args.push_back(choice());
    return node;
  }

  Node binary(int least) {
    Node left = unary();
    while (token_.kind == Token::kSign && binding(token_.text) >= least) {
      Node node{ExprKind::kBinary, std::string(token_.text), {}, {}};
      next();
      node.args.push_back(std::move(left));
      node.args.push_back(binary(binding(node.text) + 1));
      left = std::move(node);
    }
    return left;
  }

  Node unary() {
    if (!sees("!") && !sees("-")) return primary();
    const Depth depth(*this);
    Node node{ExprKind::kUnary, std::string(token_.text), {}, {}};
    next();
    node.args.push_back(unary());
    return node;
  }

  Node primary() {
    if (accept("(")) {
      Node inside = choice();
      expect(")");
      return inside;
    }
    const Token token = token_;
    if (token.kind == Token::kEnd || token.kind == Token::kSign)
      fail("expected a value");
    if (token.kind == Token::kNumber) return number();
    next();
    if (token.kind == Token::kString)
      return literal(std::string(token.text.substr(1, token.text.size() - 2)));
    if (sees("(")) return call(token);
    return name(std::string(token.text));
  }

  static Node literal(Json value) {
    return {ExprKind::kLiteral, {}, std::move(value), {}};
  }

  Node number() {
    const std::string_view text = token_.text;
    const char* end = text.data() + text.size();
    Json value;
    if (text.find('.') == text.npos) {
      int64_t whole = 0;
      if (std::from_chars(text.data(), end, whole).ec != std::errc())
        fail("a number that 64 bits do not hold");
      value = whole;
    } else {
      double real = 0;
      std::from_chars(text.data(), end, real);
      value = real;
    }
    next();
    return literal(std::move(value));
  }

  Node name(std::string text) {
    if (text == "null") return literal(nullptr);
    if (text == "true" || text == "false") return literal(text == "true");
    if (std::ranges::find(expr_.names_, text) == expr_.names_.end())
      expr_.names_.push_back(text);
    return {ExprKind::kName, std::move(text), {}, {}};
  }

  Node call(const Token& function) {
    const size_t arity = function_arity(function.text);
    if (arity == 0) unknown_function(function);
    Node node{ExprKind::kCall, std::string(function.text), {}, {}};
    expect("(");
    while (!sees(")")) {
      node.args.push_back(choice());
      if (!sees(")")) expect(",");
    }
    if (node.args.size() != arity)
      fail(fmt::format("{} takes {} arguments, {} given,", function.text, arity,
                       node.args.size()));
    next();
    return node;
  }

  [[noreturn]] void unknown_function(const Token& function) {
    token_ = function;
    std::vector<std::string> known;
    for (const Function& f : kFunctions) known.emplace_back(f.name);
    const std::string near = text::nearest(function.text, known);
    fail(fmt::format("no function {}{}", function.text,
                     near.empty() ? "" : " (did you mean " + near + "?)"));
  }

  Expr& expr_;
  std::string_view text_;
  size_t at_ = 0;
  size_t depth_ = 0;
  Token token_;
};

Expr::Expr(std::string_view text) : text_(text) {
  root_ = std::make_unique<Node>(ExprParser(*this).parse());
}

Expr::~Expr() = default;
Expr::Expr(Expr&&) noexcept = default;
Expr& Expr::operator=(Expr&&) noexcept = default;

}  // namespace ckpt::families
