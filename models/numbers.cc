// SPDX-License-Identifier: Apache-2.0
#include "models/numbers.h"

#include <algorithm>
#include <array>

#include "ckpt/error.h"
#include "lib/pickle/config.h"
#include "lib/text/format.h"
#include "lib/text/other_json.h"
#include "models/defaults.h"
#include "models/located.h"

namespace ckpt::families {
namespace {

constexpr uint64_t kMost = uint64_t{1} << 48;
constexpr uint32_t kMostSteps = 10'000;
const Json kNothing;

struct Label {
  std::string_view name;
  std::string_view what;
};
constexpr auto kLabels = std::to_array<Label>({
    {"$L", "layers"},
    {"$H", "width"},
    {"$nh", "heads"},
    {"$ng", "key-value heads"},
    {"$hd", "head size"},
    {"$F", "feed-forward size"},
    {"$V", "vocabulary"},
    {"$tie", "tied embeddings"},
    {"$eps", "norm epsilon"},
    {"$theta", "rotary base"},
    {"$maxpos", "positions"},
    {"$E", "experts"},
    {"$Fe", "expert size"},
    {"$Fs", "shared expert size"},
    {"$topk", "experts per token"},
    {"$mtp", "prediction layers"},
    {"$qlora", "query rank"},
});

// "heads $nh"
std::string labelled(const std::string& name) {
  const auto label = std::ranges::find(kLabels, name, &Label::name);
  return label == kLabels.end() ? name : std::string(label->what) + " " + name;
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

std::string plain(const std::string& name) {
  return name.starts_with('$') ? name.substr(1) : name;
}

std::string set_hint(const std::string& name) {
  return "give it: --set " + plain(name) + "=VALUE";
}

const Json& at_path(const Json& from, std::string_view dotted) {
  const Json* value = &from;
  while (true) {
    if (!value->is_object()) return kNothing;
    const size_t dot = dotted.find('.');
    const auto found = value->find(std::string(dotted.substr(0, dot)));
    if (found == value->end()) return kNothing;
    value = &*found;
    if (dot == dotted.npos) return *value;
    dotted.remove_prefix(dot + 1);
  }
}

Json parse_override(const std::string& text) {
  auto value = text::parse_or_discard<Json>(text);
  return value.is_discarded() ? Json(text) : value;
}

void add_unique(std::vector<std::string>& list, const std::string& one) {
  if (std::ranges::count(list, one) == 0) list.push_back(one);
}

}  // namespace

// The values of names while an expression is evaluated, and which of them were
// used.
class Numbers::Scope : public Expr::Scope {
 public:
  Scope(const Numbers& numbers, const Indices& at)
      : numbers_(numbers), at_(at) {}

  const Json& value(const std::string& name) const override {
    if (name.starts_with('$')) return held_ = numbers_.variable(name, *this);
    if (const auto index = at_.find(name); index != at_.end()) {
      indexed_ = true;
      return held_ = index->second;
    }
    if (const Json* given = numbers_.override_of(name)) {
      add_unique(fields_, "--set " + name);
      return *given;
    }
    const Json& found = numbers_.lookup(name);
    if (found.is_null()) return found;
    add_unique(fields_, name);
    if (found.is_structured()) numbers_.check_known(name, found);
    numbers_.check_kind(name, found);
    return found;
  }

  const Indices& at() const { return at_; }
  bool indexed() const { return indexed_; }
  const std::vector<std::string>& fields() const { return fields_; }
  void merge(const Scope& inner) const {
    indexed_ = indexed_ || inner.indexed_;
    for (const std::string& field : inner.fields_) add_unique(fields_, field);
  }

 private:
  const Numbers& numbers_;
  const Indices& at_;
  mutable Json held_;
  mutable bool indexed_ = false;
  mutable std::vector<std::string> fields_;
};

Numbers::Numbers(std::shared_ptr<const Family> family, const Dialect& dialect,
                 std::string side, Json values, std::string source,
                 const Overrides& overrides)
    : family_(std::move(family)),
      dialect_(&dialect),
      side_(std::move(side)),
      values_(std::move(values)),
      source_(std::move(source)) {
  if (side_ == "hf") {
    const HfSide& hf = family_->hf();
    drop_beside_text_config(values_, hf.text_type, hf.outer);
    complete_text_config(values_, hf.text_type);
  }
  std::set<std::string> known;
  for (const auto& [name, definition] : dialect.vars) {
    known.insert(plain(name));
    const auto expression = definition.find(side_);
    if (expression == definition.end()) continue;
    for (const std::string& used : parsed(expression->second).names())
      known.insert(plain(used));
  }
  kinds_.read(dialect, side_);
  for (const auto& [name, text] : overrides) {
    if (!known.contains(name))
      throw usage_error({}, "--set {}: family {} doesn't have this number",
                        text::printable(name), family_->name())
          .with_hint(known_names(name, {known.begin(), known.end()}));
    overrides_.emplace(name, parse_override(text));
  }
}

Numbers::~Numbers() = default;
Numbers::Numbers(Numbers&&) noexcept = default;

const Expr& Numbers::parsed(const std::string& text) const {
  auto& slot = parsed_[text];
  if (!slot) slot = std::make_unique<Expr>(text);
  return *slot;
}

const Json* Numbers::override_of(const std::string& name) const {
  const auto found = overrides_.find(plain(name));
  return found == overrides_.end() ? nullptr : &found->second;
}

const Json& Numbers::lookup(const std::string& dotted) const {
  if (side_ != "hf") return at_path(values_, dotted);
  for (const std::string& root : family_->hf().config_roots) {
    const Json& place = root.empty() ? values_ : at_path(values_, root);
    const Json& found = at_path(place, dotted);
    if (!found.is_null()) return found;
  }
  return kNothing;
}

// What is there and can't be read is neither absent nor a default.
void Numbers::check_known(const std::string& name, const Json& value) const {
  if (checked_.contains(&value)) return;
  if (pickle::is_foreign(value))
    throw input_error({source_, {}}, "{} is {}, which no configuration has",
                      text::printable(name),
                      text::printable(pickle::foreign_name(value)))
        .with_hint("give it: --set " + plain(name) +
                   "=VALUE, or put it right in the file");
  checked_.insert(&value);
}

// Whether transformers' class has an int for that key, and refuses a float.
bool Numbers::is_count(const std::string& name) const {
  if (side_ != "hf") return false;
  for (const Json* part : {&values_, &at_path(values_, "text_config")}) {
    const Json& type = at_path(*part, "model_type");
    if (!type.is_string()) continue;
    const Json& usual =
        at_path(hf_defaults(type.get_ref<const std::string&>()), name);
    if (usual.is_number_integer()) return true;
  }
  return false;
}

// A list where a number belongs, a text where a switch does, or 64.0 where a
// size does.
void Numbers::check_kind(const std::string& name, const Json& value) const {
  std::string expected = kinds_.expected(name, value);
  if (expected.empty() && value.is_number_float() && is_count(name))
    expected = "a whole number";
  if (expected.empty()) return;
  throw unfaithful_error({source_, {}}, "{} is {}, expected {}",
                         text::printable(name), text::printable(shown(value)),
                         expected)
      .with_hint("give it: --set " + plain(name) +
                 "=VALUE, or put it right in the file");
}

// Computes a variable only once if it depends on no index.
Json Numbers::variable(const std::string& name, const Scope& outer) const {
  // A hostile file's variables may double the work with every level.
  if (++steps_ > kMostSteps)
    throw unfaithful_error({source_, {}}, "{}: over {} variables in one value",
                           labelled(name), kMostSteps)
        .with_hint("the family's file is made to have no end");
  if (const auto known = used_.find(name); known != used_.end())
    return known->second.value;
  if (const Json* given = override_of(name)) {
    used_[name] = {*given, "--set"};
    return *given;
  }
  const auto found = dialect_->vars.find(name);
  const Variable* definition =
      found == dialect_->vars.end() ? nullptr : &found->second;
  const auto expression = [&]() -> const std::string* {
    if (!definition) return nullptr;
    auto side = definition->find(side_);
    if (side == definition->end()) side = definition->find("");
    return side == definition->end() ? nullptr : &side->second;
  }();
  if (!expression)
    throw unfaithful_error({source_, {}}, "{}: no way to find it in {}'s {}",
                           labelled(name), family_->name(), side_)
        .with_hint(set_hint(name));
  const Scope inner(*this, outer.at());
  Json value;
  try {
    value = parsed(*expression).eval(inner);
  } catch (const Error& error) {
    if (!error.hint().empty()) throw;
    std::string of;  // the keys that it was made of
    for (const std::string& field : inner.fields())
      of += (of.empty() ? " (" : ", ") + text::printable(field);
    throw unfaithful_error({source_, {}}, "{}: {}{}", labelled(name),
                           error.problem(), of.empty() ? of : of + ")")
        .with_hint(set_hint(name));
  }
  outer.merge(inner);
  if (inner.indexed()) return value;
  std::string from;
  for (const std::string& field : inner.fields())
    from += (from.empty() ? "" : ", ") + field;
  if (from.empty() && value.is_null())
    from = fmt::format("{}", fmt::join(parsed(*expression).names(), ", "));
  if (from.empty())
    from = "by the family's file";
  else if (!source_.empty())
    from = source_ + " " + from;
  used_[name] = {value, std::move(from)};
  return value;
}

Json Numbers::eval(const std::string& expression, const Indices& at) const {
  std::string from;
  return eval(expression, at, from);
}

Json Numbers::eval(const std::string& expression, const Indices& at,
                   std::string& from) const {
  const Scope scope(*this, at);
  steps_ = 0;
  try {
    Json value = parsed(expression).eval(scope);
    from = fmt::format("{}", fmt::join(scope.fields(), ", "));
    if (const auto use = used_.find(expression); use != used_.end())
      from = use->second.from;
    return value;
  } catch (const Error& error) {
    if (!error.hint().empty()) throw;
    // The name without a value, if that is the reason.
    if (error.code() == ExitCode::kDamaged) throw;
    std::string missing;
    for (const std::string& name : parsed(expression).names())
      if (missing.empty() && scope.value(name).is_null()) missing = name;
    const Error wrong = unfaithful_error({source_, {}}, "\"{}\": {}",
                                         expression, error.problem());
    throw missing.empty() ? wrong : wrong.with_hint(set_hint(missing));
  }
}

void Numbers::complete(const std::string& variable, Json value,
                       std::string from) {
  used_[variable] = {std::move(value), std::move(from)};
}

bool Numbers::holds(const std::string& condition, const Indices& at) const {
  return condition.empty() || truthy(eval(condition, at));
}

uint64_t Numbers::whole(const std::string& expression, const Indices& at,
                        std::string_view what) const {
  const Json value = eval(expression, at);
  const auto& names = parsed(expression).names();
  const std::string name = names.empty() ? expression : names[0];
  if (value.is_null()) {
    const auto use = used_.find(name);
    if (name == expression && use != used_.end())
      throw unfaithful_error({source_, {}}, "{} is missing (looked for {})",
                             labelled(expression), use->second.from)
          .with_hint(set_hint(name));
    throw unfaithful_error({source_, {}}, "{} is missing: {}", what,
                           labelled(expression))
        .with_hint(set_hint(name));
  }
  if (!value.is_number_integer() ||
      (!value.is_number_unsigned() && value.get<int64_t>() < 0) ||
      value.get<uint64_t>() > kMost) {
    const auto use = used_.find(name);
    const std::string from = use != used_.end() && !use->second.from.empty()
                                 ? ", of " + use->second.from
                                 : "";
    throw unfaithful_error({source_, {}},
                           "{} is {}, expected a whole number ({}{})", what,
                           shown(value), labelled(expression), from)
        .with_hint(set_hint(name));
  }
  return value.get<uint64_t>();
}

uint64_t Numbers::whole(const Op& op, const char* param, const char* fallback,
                        const Indices& at) const {
  const auto given = op.params.find(param);
  if (given == op.params.end()) return whole(std::string(fallback), at, param);
  if (given->is_string()) return whole(given->get<std::string>(), at, param);
  return whole(given->dump(), at, param);
}

namespace {

// What an expression may add to a name, besides a number: "global".
bool is_word(const Json& value) {
  return value.is_string() && !value.get_ref<const std::string&>().empty() &&
         std::ranges::all_of(value.get_ref<const std::string&>(), [](char c) {
           return (c >= 'a' && c <= 'z') || c == '_';
         });
}

}  // namespace

std::string Numbers::fill(const std::string& name, const Indices& at) const {
  std::string filled;
  size_t from = 0;
  while (true) {
    const size_t open = name.find('{', from);
    filled += name.substr(from, open - from);
    if (open == name.npos) return filled;
    const size_t close = std::min(name.find('}', open), name.size());
    const std::string inside = name.substr(open + 1, close - open - 1);
    if (const auto index = at.find(inside); index != at.end())
      filled += std::to_string(index->second);
    else if (const Json value = eval(inside, at); is_word(value))
      filled += value.get<std::string>();
    else
      filled += std::to_string(whole(inside, at, "part of a name"));
    from = std::min(close + 1, name.size());
  }
}

uint64_t Numbers::count(const std::string& index) const {
  const auto range = dialect_->index.find(index);
  if (range == dialect_->index.end())
    throw bug_error({}, "family {}: no index {}", family_->name(), index);
  if (eval(range->second).is_null()) return 0;
  return whole(range->second, {}, "index " + index);
}

std::vector<std::string> Numbers::used() const {
  std::vector<std::string> lines;
  for (const auto& [name, use] : used_)
    lines.push_back(fmt::format("{} = {} ({})", labelled(name),
                                text::printable(shown(use.value)),
                                text::printable(use.from)));
  return lines;
}

}  // namespace ckpt::families
