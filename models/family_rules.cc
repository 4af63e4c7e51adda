// SPDX-License-Identifier: Apache-2.0
// The rules of a family file: their fields, and which may be combined.
#include <algorithm>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "models/family_read.h"

namespace ckpt::families {
namespace {

constexpr uint64_t kMaxParts = 4096;

// What an operation takes. A parameter is an expression or a whole number, a
// list of those ("…[]"), one list per tensor ("…[][]"), a number ("…#") or the
// name of an index ("…@").
struct Shape {
  std::string_view name;
  std::vector<std::string_view> needs;
  std::vector<std::string_view> may;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"copy", {}, {}},
      {"t", {}, {}},
      {"vocab", {}, {}},
      {"cat", {}, {"dim", "sizes[]"}},
      {"stack", {}, {}},
      {"qkv", {}, {"heads", "groups", "head_dim", "pairs"}},
      {"qkv_cat", {}, {"heads", "groups", "head_dim"}},
      {"qkv_gated", {}, {"heads", "groups", "head_dim"}},
      {"kv", {}, {"groups", "head_dim"}},
      {"ungroup", {"groups", "sizes[][]"}, {}},
      {"rope_interleave", {}, {"heads"}},
      {"add", {"value#"}, {}},
      {"decay", {}, {}},
      {"const", {"value#", "shape[]"}, {}},
      {"index", {"index@"}, {}},
      {"part", {"sizes[]", "at"}, {"dim", "groups"}},
      {"deinterleave", {}, {}},
      {"roll", {"rows"}, {}},
      {"tile", {"groups"}, {"dim", "size", "from"}},
      {"reshape", {"to[]", "from[]"}, {}},
      {"upright", {"rows", "columns"}, {}},
  };
  return all;
}

// Operations that make one tensor of several.
bool joins(std::string_view op) {
  return op == "qkv" || op == "qkv_gated" || op == "kv" || op == "cat" ||
         op == "ungroup" || op == "stack";
}

std::string_view plain(std::string_view param) {
  const size_t mark = param.find_first_of("[#@");
  return param.substr(0, mark);
}

class RuleReader {
 public:
  RuleReader(const Value& value, const Names& names)
      : value_(value), names_(names) {}

  Rule read() {
    value_.only(
        {"to", "hf", "op", "tp", "when", "optional", "alias", "dtype", "each"});
    rule_.line = value_.line();
    read_names();
    read_ops();
    if (const auto tp = value_.find("tp")) read_tp(*tp);
    if (const auto when = value_.find("when")) {
      rule_.when = when->text();
      check(*when, rule_.when);
    }
    if (const auto flag = value_.find("optional"))
      rule_.optional = flag->flag();
    if (const auto flag = value_.find("alias")) rule_.alias = flag->flag();
    if (const auto dtype = value_.find("dtype")) read_dtype(*dtype);
    check_sources();
    check_rest();
    return std::move(rule_);
  }

 private:
  void check(const Value& value, const std::string& text) const {
    check_expression(value, text, names_, indices_);
  }

  // The rule is repeated for the indices in the name.
  void read_names() {
    const Value to = value_.member("to");
    rule_.to = to.text();
    if (rule_.to.empty()) to.fail("an empty name");
    for (const std::string& text : braces(to, rule_.to)) {
      check_expression(to, text, names_, names_.all_index);
      const Expr expression(text);
      for (const std::string& name : expression.names())
        if (names_.all_index.contains(name)) indices_.insert(name);
    }
    const Value hf = value_.member("hf");
    rule_.hf = texts(hf);
    read_each();
    std::set<std::string> allowed = indices_;
    if (!rule_.each.empty()) allowed.insert(rule_.each);
    for (const Value& name : hf.items())
      for (const std::string& text : braces(name, name.text()))
        check_expression(name, text, names_, allowed);
  }

  void read_each() {
    const auto each = value_.find("each");
    if (!each) return;
    rule_.each = each->text();
    if (!names_.all_index.contains(rule_.each))
      each->fail("no index " + text::printable(rule_.each));
    if (indices_.contains(rule_.each))
      each->fail("index " + rule_.each + " is in \"to\" too");
    if (rule_.hf.size() != 1)
      each->fail("needs one name in \"hf\", which stands for all of them");
  }

  void read_ops() {
    const auto ops = value_.find("op");
    if (!ops) return;
    if (ops->json().is_array()) {
      for (const Value& op : ops->items()) read_op(op);
    } else {
      read_op(*ops);
    }
  }

  void read_op(const Value& value) {
    const Value name = value.is_text() ? value : value.member("name");
    std::vector<std::string> known;
    for (const Shape& shape : shapes()) known.emplace_back(shape.name);
    const auto shape = std::ranges::find(shapes(), name.text(), &Shape::name);
    if (shape == shapes().end())
      name.fail("unknown operation \"" + text::printable(name.text()) + "\"",
                known_names(name.text(), known));
    Op op{name.text(), Json::object()};
    if (!value.is_text()) {
      op.params = value.json();
      op.params.erase("name");
    }
    check_params(value, *shape);
    if (op.name != "copy") rule_.ops.push_back(std::move(op));
  }

  void check_params(const Value& value, const Shape& shape) {
    if (value.is_text()) {
      if (!shape.needs.empty())
        value.fail(
            fmt::format("{} needs \"{}\"", shape.name, plain(shape.needs[0])));
      return;
    }
    std::vector<std::string_view> all = shape.needs;
    all.insert(all.end(), shape.may.begin(), shape.may.end());
    std::vector<std::string> known;
    for (const std::string_view param : all) known.emplace_back(plain(param));
    for (const auto& [key, param] : value.members()) {
      if (key == "name") continue;
      if (!std::ranges::count(known, key))
        param.fail(
            fmt::format("{} has no \"{}\"", shape.name, text::printable(key)),
            known_names(key, known));
    }
    for (const std::string_view param : shape.needs)
      check_param(value.member(plain(param)), param);
    for (const std::string_view param : shape.may)
      if (const auto given = value.find(plain(param)))
        check_param(*given, param);
  }

  void check_param(const Value& value, std::string_view param) {
    const std::string_view kind = param.substr(plain(param).size());
    if (kind == "#") {
      if (!value.json().is_number()) value.fail("expected a number");
    } else if (kind == "@") {
      if (!indices_.contains(value.text()))
        value.fail("expected an index that is in \"to\"");
    } else if (kind == "[][]") {
      if (value.items().size() != rule_.hf.size())
        value.fail(fmt::format("{} lists for {} tensors", value.items().size(),
                               rule_.hf.size()));
      for (const Value& list : value.items()) check_param(list, "[]");
    } else if (kind == "[]") {
      if (value.items().empty()) value.fail("an empty list");
      for (const Value& item : value.items()) check_size(item);
    } else {
      check_size(value);
    }
  }

  void check_size(const Value& value) const {
    if (value.is_text())
      check(value, value.text());
    else
      value.number(0, uint64_t{1} << 48);
  }

  void read_tp(const Value& value) {
    value.only({"dim", "parts", "group"});
    TpCut cut;
    const Value dim = value.member("dim");
    if (dim.is_text()) {
      cut.dim = dim.text();
      check(dim, cut.dim);
    } else {
      cut.dim = std::to_string(dim.number(0, 15));
    }
    if (const auto parts = value.find("parts")) read_parts(*parts, cut);
    if (const auto group = value.find("group")) {
      if (group->text() != "etp") group->fail("expected \"etp\"");
      cut.expert = true;
    }
    rule_.tp = std::move(cut);
  }

  // A number of equal parts, or the extent of each.
  void read_parts(const Value& value, TpCut& cut) const {
    if (!value.json().is_array()) {
      cut.parts = static_cast<uint32_t>(value.number(1, kMaxParts));
      return;
    }
    if (value.items().empty()) value.fail("an empty list");
    for (const Value& size : value.items()) {
      check_size(size);
      cut.sizes.push_back(size.is_text() ? size.text() : size.json().dump());
    }
    cut.parts = static_cast<uint32_t>(cut.sizes.size());
  }

  void read_dtype(const Value& value) {
    rule_.dtype = dtype_from_name(value.text());
    if (!rule_.dtype)
      value.fail("unknown dtype \"" + text::printable(value.text()) + "\"",
                 "as inspect shows them: f32, bf16, i64 …");
  }

  // The first operation decides how many tensors a rule takes.
  void check_sources() const {
    const Value hf = value_.member("hf");
    const std::string first = rule_.ops.empty() ? "copy" : rule_.ops[0].name;
    const size_t count = rule_.hf.size();
    if (first == "const") {
      if (count != 0) hf.fail("const is made of nothing");
    } else if (count == 0) {
      hf.fail("a tensor that is made of nothing needs const");
    } else if (first == "qkv" && count > 3) {
      hf.fail(fmt::format("qkv takes q, k and v; q and k; or q: not {} names",
                          count));
    } else if (first == "qkv_gated" && count != 3) {
      hf.fail(
          fmt::format("{} needs q, k and v: 3 names, not {}", first, count));
    } else if (first == "kv" && count != 2) {
      hf.fail(fmt::format("kv needs k and v: 2 names, not {}", count));
    } else if (!joins(first) && count > 1) {
      hf.fail(fmt::format("{} names, but {} takes one", count, first));
    }
    if (!rule_.each.empty() && first != "cat" && first != "stack")
      hf.fail("\"each\" needs cat or stack as the first operation");
    for (size_t i = 1; i < rule_.ops.size(); ++i) {
      const std::string& name = rule_.ops[i].name;
      const bool alone = name == "ungroup" && rule_.hf.size() == 1;
      if ((joins(name) && !alone) || name == "const" || name == "part")
        value_.member("op").fail(name + " can only be the first operation");
    }
  }

  // "**" stands for the rest of a name, unchanged; it must be at the end.
  void check_rest() const {
    const Value hf = value_.member("hf");
    const auto stars = [](const std::string& name) {
      return name.find('*') != name.npos;
    };
    if (!stars(rule_.to) && std::ranges::none_of(rule_.hf, stars)) return;
    const auto ends = [&](const std::string& name) {
      return name.size() > 3 && name.ends_with(".**") &&
             name.find('*') == name.size() - 2 && name.find('{') == name.npos;
    };
    if (!ends(rule_.to) || rule_.hf.size() != 1 || !ends(rule_.hf[0]))
      hf.fail(
          "\"**\" is the end of both names, behind a dot: "
          "\"visual.**\"");
    if (!rule_.ops.empty() || rule_.tp || rule_.alias || rule_.dtype)
      hf.fail("what \"**\" stands for is whole and stays as it is");
  }

  const Value& value_;
  const Names& names_;
  std::set<std::string> indices_;
  Rule rule_;
};

}  // namespace

void check_expression(const Value& value, const std::string& text,
                      const Names& names,
                      const std::set<std::string>& indices) {
  std::vector<std::string> used;
  try {
    used = Expr(text).names();
  } catch (const Error& error) {
    value.fail(error.problem());
  }
  for (const std::string& name : used) {
    if (name.starts_with('$') && !names.vars.contains(name))
      value.fail("no variable " + name,
                 known_names(name, {names.vars.begin(), names.vars.end()}));
    if (names.all_index.contains(name) && !indices.contains(name))
      value.fail("index " + name + " has no value here",
                 "a rule is repeated for the indices in its \"to\"");
  }
}

std::vector<std::string> braces(const Value& value, const std::string& name) {
  std::vector<std::string> inside;
  for (size_t at = 0; (at = name.find_first_of("{}", at)) != name.npos;) {
    const size_t end = name.find_first_of("{}", at + 1);
    if (name[at] == '}' || end == name.npos || name[end] == '{')
      value.fail("{ and } do not match");
    inside.push_back(name.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return inside;
}

Rule read_rule(const Value& value, const Names& names) {
  return RuleReader(value, names).read();
}

void check_table(const Value& value, const Names& names) {
  if (value.is_text() && value.text().starts_with('='))
    return check_expression(value, value.text().substr(1), names, {});
  if (value.json().is_array()) {
    for (const Value& item : value.items()) check_table(item, names);
  } else if (value.is_object() && value.find("each")) {
    value.only({"each", "of", "where", "text"});
    if (const auto text = value.find("text")) text->flag();
    const Value each = value.member("each");
    if (!names.all_index.contains(each.text()))
      each.fail("no index " + text::printable(each.text()));
    check_expression(value.member("of"), value.member("of").text(), names,
                     {each.text()});
    if (const auto where = value.find("where"))
      check_expression(*where, where->text(), names, {each.text()});
  } else if (value.is_object()) {
    for (const auto& [key, member] : value.members())
      check_table(member, names);
  }
}

}  // namespace ckpt::families
