// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/config.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "lib/pickle/json_builder.h"

namespace ckpt::pickle {
namespace {

constexpr size_t kMostNested = 200;
constexpr uint64_t kDescribed = 8;  // values shown of what is foreign

using Value = nlohmann::json;

class Config {
 public:
  Config(const Document& document, uint64_t budget)
      : doc_(document), budget_(budget) {}

  Value value(Id id, size_t depth) {
    if (budget_ == 0 || depth > kMostNested) return foreign("!elided", 1);
    --budget_;
    switch (doc_.type(id)) {
      case Type::kNone:
        return nullptr;
      case Type::kBool:
        return doc_.boolean(id);
      case Type::kInt:
        return doc_.integer(id);
      case Type::kFloat:
        return doc_.real(id);
      case Type::kList:
      case Type::kTuple:
        return list(doc_.items(id), depth);
      case Type::kDict:
      case Type::kCall:
        return call(id, depth);
      default:
        return as_shown(id);
    }
  }

 private:
  static Value foreign(const char* tag, Value what) {
    return Value::object({{tag, std::move(what)}});
  }

  Value list(std::span<const Id> items, size_t depth) {
    Value all = Value::array();
    for (const Id item : items) {
      all.push_back(value(item, depth + 1));
      if (budget_ == 0) break;
    }
    return all;
  }

  Value call(Id id, size_t depth) {
    if (const auto pairs = doc_.as_pairs(id)) return object(id, *pairs, depth);
    if (is_own_dict(id)) {
      const auto pairs = doc_.call(id).pairs;
      return object(id, {pairs.begin(), pairs.end()}, depth);
    }
    if (doc_.known(id) == Known::kSize)
      if (const auto items = sequence(doc_, id)) return list(*items, depth);
    Value shown = as_shown(id);
    if (shown.contains("!ndarray")) return numbers_of(id);
    return shown;
  }

  // A dict of a class of its own: made of nothing, then set item by item.
  bool is_own_dict(Id id) const {
    if (!doc_.is(id, Type::kCall)) return false;
    const Call call = doc_.call(id);
    return !call.pairs.empty() && call.items.empty() && call.state == kNoId;
  }

  Value object(Id id, const std::vector<Id>& pairs, size_t depth) {
    Value all = Value::object();
    for (size_t i = 0; i < pairs.size(); i += 2) {
      if (!doc_.is(pairs[i], Type::kString)) return as_shown(id);
      const std::string key(doc_.text(pairs[i]));
      if (key.starts_with('!')) return as_shown(id);
      all[key] = value(pairs[i + 1], depth + 1);
      if (budget_ == 0) break;
    }
    return all;
  }

  // As to_json shows it, without its tags of plain values: one implementation
  // of numpy's numbers and of texts.
  Value as_shown(Id id) const {
    Value shown = to_json(doc_, id, kDescribed);
    if (shown.is_object() && shown.contains("!np_scalar"))
      return untagged(std::move(shown["value"]));
    if (shown.is_object() && (shown.size() != 1 || !is_foreign(shown)))
      return named(shown);
    return shown;
  }

  static Value untagged(Value number) {
    if (number.is_object() && number.contains("!float"))
      return std::strtod(number["!float"].get_ref<const std::string&>().c_str(),
                         nullptr);
    return number;
  }

  // The first tag alone: what it is.
  static Value named(const Value& shown) {
    for (const auto& [key, what] : shown.items())
      if (key.starts_with('!')) return foreign(key.c_str(), what);
    return foreign("!dict", Value());
  }

  // Of one dimension; others have no place in a configuration.
  Value numbers_of(Id id) const {
    const auto array = numpy_array(doc_, id);
    const auto values = array ? numbers(doc_, *array) : std::nullopt;
    if (!values || array->shape->size() != 1) return as_shown(id);
    Value all = Value::array();
    Numbers one{
        values->type, values->kind, values->size, values->big_endian, {}};
    for (size_t at = 0; at < values->bytes.size(); at += values->size) {
      one.bytes = values->bytes.substr(at, values->size);
      all.push_back(untagged(number_json(one)));
    }
    return all;
  }

  const Document& doc_;
  uint64_t budget_;
};

}  // namespace

nlohmann::json to_config(const Document& document, Id root, uint64_t budget) {
  return Config(document, budget).value(root, 0);
}

bool is_foreign(const nlohmann::json& value) {
  if (value.is_array()) return std::ranges::any_of(value, is_foreign);
  return value.is_object() && value.size() == 1 &&
         value.begin().key().starts_with('!');
}

std::string foreign_name(const nlohmann::json& value) {
  if (value.is_array()) {
    const auto one = std::ranges::find_if(value, is_foreign);
    return "a list with " + (one == value.end() ? "" : foreign_name(*one));
  }
  if (!is_foreign(value)) return "no value of a configuration";
  const std::string tag = value.begin().key().substr(1);
  const nlohmann::json& what = value.begin().value();
  if (what.is_string() && (tag == "object" || tag == "global"))
    return (tag == "object" ? "an object of " : "the class or function ") +
           what.get<std::string>();
  if (what.is_string() && tag == "dtype")
    return "the type torch." + what.get<std::string>();
  return "a " + tag;
}

}  // namespace ckpt::pickle
