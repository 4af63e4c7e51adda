// SPDX-License-Identifier: Apache-2.0
#include "models/located.h"

#include <algorithm>
#include <charconv>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/scan.h"
#include "lib/text/suggest.h"

namespace ckpt::families {

using text::Scanner;

// Parses and records the byte at which each value begins.
class LocatedParser {
 public:
  explicit LocatedParser(Located& file)
      : file_(file), scan_(file.text_, file.source_) {}

  void run() {
    file_.root_ = value(file_.places_);
    scan_.finish();
  }
  uint64_t position() const { return scan_.position(); }

 private:
  using Place = Located::Place;

  // Recurses no deeper than the scanner lets it: kMaxJsonDepth.
  Json value(Place& place) {
    const Scanner::Kind kind = scan_.peek();
    place.offset = scan_.position();
    switch (kind) {
      case Scanner::Kind::kObject:
        return object(place);
      case Scanner::Kind::kArray:
        return array(place);
      case Scanner::Kind::kString:
        return std::string(scan_.string());
      case Scanner::Kind::kNumber:
        return number();
      default:
        break;
    }
    scan_.literal();
    if (kind == Scanner::Kind::kNull) return nullptr;
    return kind == Scanner::Kind::kTrue;
  }

  Json object(Place& place) {
    Json::object_t members;
    scan_.enter_object();
    while (const auto key = scan_.next_key()) {
      const std::string name(*key);
      const auto [member, is_new] = members.try_emplace(name);
      if (!is_new)
        scan_.fail(
            fmt::format("key \"{}\" given twice", text::printable(name)));
      member->second = value(place.members[name]);
    }
    return members;
  }

  Json array(Place& place) {
    Json::array_t items;
    scan_.enter_array();
    while (scan_.next_item())
      items.push_back(value(place.items.emplace_back()));
    return items;
  }

  Json number() {
    const std::string spelled(scan_.number());
    const char* end = spelled.data() + spelled.size();
    int64_t whole = 0;
    const auto result = std::from_chars(spelled.data(), end, whole);
    if (result.ec == std::errc() && result.ptr == end) return whole;
    double real = 0;
    if (std::from_chars(spelled.data(), end, real).ec != std::errc())
      scan_.fail("a number that can't be held");
    return real;
  }

  Located& file_;
  Scanner scan_;
};

namespace {

// Strips the byte from the scanner's "PROBLEM at byte 12": a line number is
// better.
std::string without_byte(const std::string& problem) {
  return problem.substr(0, problem.rfind(" at byte "));
}

const char* type_name(const Json& json) {
  if (json.is_null()) return "null";
  if (json.is_boolean()) return "true or false";
  if (json.is_number()) return "a number";
  if (json.is_string()) return "a text";
  return json.is_array() ? "a list" : "an object";
}

}  // namespace

Located::Located(std::string text, std::string source, std::string about)
    : text_(std::move(text)),
      source_(std::move(source)),
      about_(std::move(about)) {
  uint64_t at = 0;
  try {
    LocatedParser parser(*this);
    try {
      parser.run();
    } catch (const Error&) {
      at = parser.position();
      throw;
    }
  } catch (const Error& error) {
    throw usage_error({place(at), {}}, "{}", without_byte(error.problem()))
        .with_hint(about_);
  }
}

Value Located::root() const { return {*this, root_, places_}; }

bool Located::path_to(const Place& from, const Place* wanted,
                      std::string& path) {
  if (&from == wanted) return true;
  const size_t length = path.size();
  const auto inside = [&](const Place& place, const std::string& name) {
    path += (path.empty() ? "" : ".") + name;
    if (path_to(place, wanted, path)) return true;
    path.resize(length);
    return false;
  };
  for (size_t i = 0; i < from.items.size(); ++i)
    if (inside(from.items[i], std::to_string(i))) return true;
  for (const auto& [name, place] : from.members)
    if (inside(place, name)) return true;
  return false;
}

uint32_t Located::line(size_t offset) const {
  const auto end =
      text_.begin() + static_cast<ptrdiff_t>(std::min(offset, text_.size()));
  return static_cast<uint32_t>(std::count(text_.begin(), end, '\n')) + 1;
}

std::string Located::place(size_t offset) const {
  const size_t at = std::min(offset, text_.size());
  const size_t newline = at == 0 ? text_.npos : text_.rfind('\n', at - 1);
  const size_t column = newline == text_.npos ? at + 1 : at - newline;
  return fmt::format("{}:{}:{}", source_, line(at), column);
}

void Value::fail(std::string_view problem, std::string_view hint) const {
  std::string path;
  Located::path_to(file_->places_, place_, path);
  throw usage_error({file_->place(place_->offset), text::printable(path)}, "{}",
                    problem)
      .with_hint(hint.empty() ? file_->about_ : std::string(hint));
}

void Value::expect(bool right, const char* what) const {
  if (!right)
    fail(fmt::format("expected {}, found {}", what, type_name(*json_)));
}

void Value::only(std::initializer_list<std::string_view> fields) const {
  const std::vector<std::string> known(fields.begin(), fields.end());
  for (const auto& [key, value] : members()) {
    if (!std::ranges::count(known, key))
      value.fail(fmt::format("unknown field \"{}\"", text::printable(key)),
                 known_names(key, known));
  }
}

std::optional<Value> Value::find(std::string_view key) const {
  expect(json_->is_object(), "an object");
  const std::string name(key);
  const auto found = json_->find(name);
  if (found == json_->end()) return std::nullopt;
  return Value(*file_, *found, place_->members.at(name));
}

Value Value::member(std::string_view key) const {
  const auto found = find(key);
  if (!found) fail(fmt::format("\"{}\" is missing", key));
  return *found;
}

std::vector<std::pair<std::string, Value>> Value::members() const {
  expect(json_->is_object(), "an object");
  std::vector<std::pair<std::string, Value>> all;
  for (const auto& [key, value] : json_->items())
    all.emplace_back(key, Value(*file_, value, place_->members.at(key)));
  return all;
}

std::vector<Value> Value::items() const {
  expect(json_->is_array(), "a list");
  std::vector<Value> all;
  for (size_t i = 0; i < json_->size(); ++i)
    all.push_back(Value(*file_, (*json_)[i], place_->items[i]));
  return all;
}

const std::string& Value::text() const {
  expect(json_->is_string(), "a text");
  return json_->get_ref<const std::string&>();
}

bool Value::flag() const {
  expect(json_->is_boolean(), "true or false");
  return json_->get<bool>();
}

uint64_t Value::number(uint64_t least, uint64_t most) const {
  expect(json_->is_number_integer(), "a whole number");
  const auto value = json_->get<int64_t>();
  if (value < 0 || static_cast<uint64_t>(value) < least ||
      static_cast<uint64_t>(value) > most)
    fail(fmt::format("{} is not between {} and {}", value, least, most));
  return static_cast<uint64_t>(value);
}

std::vector<std::string> texts(const Value& value, bool one) {
  if (one && value.is_text()) return {value.text()};
  std::vector<std::string> all;
  for (const Value& item : value.items()) all.push_back(item.text());
  return all;
}

std::string known_names(std::string_view name,
                        const std::vector<std::string>& known) {
  const std::string near = text::nearest(name, known);
  if (!near.empty()) return "did you mean '" + near + "'?";
  std::string all;
  for (const std::string& one : known) all += (all.empty() ? "" : ", ") + one;
  return "known: " + all;
}

}  // namespace ckpt::families
