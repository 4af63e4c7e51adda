// SPDX-License-Identifier: Apache-2.0
// A JSON document that knows where each value is, so that an error in a
// handwritten file points at its line.
//
//   const Located file(text, "mine.json");
//   const Value rules = file.root().member("rules");
//   rules.fail("no rules")   // mine.json:14:12: rules: no rules
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::families {

using Json = nlohmann::json;

class Value;

class Located {
 public:
  // Strict JSON (lib/text/json.h). Throws usage_error with line and column;
  // errors without another hint say `about`.
  Located(std::string text, std::string source,
          std::string about = "docs/families.md has the schema");

  Value root() const;
  const std::string& source() const { return source_; }
  // "mine.json:14:12"; counts from 1, columns in bytes.
  std::string place(size_t offset) const;
  uint32_t line(size_t offset) const;

 private:
  friend class Inheritance;  // extends.h
  friend class LocatedParser;
  friend class Value;
  // Where a value and the values in it begin: mirrors the document's shape.
  struct Place {
    size_t offset = 0;
    std::vector<Place> items;
    std::map<std::string, Place> members;
  };
  // "rules.3.to", searched only when an error needs it.
  static bool path_to(const Place& from, const Place* wanted,
                      std::string& path);

  std::string text_;
  std::string source_;
  std::string about_;
  Json root_;
  Place places_;
};

// A value of the document. Every check throws usage_error with its place.
class Value {
 public:
  const Json& json() const { return *json_; }
  uint32_t line() const { return file_->line(place_->offset); }
  [[noreturn]] void fail(std::string_view problem,
                         std::string_view hint = {}) const;

  // Objects.
  void only(std::initializer_list<std::string_view> fields) const;
  std::optional<Value> find(std::string_view key) const;
  Value member(std::string_view key) const;  // has to be there
  std::vector<std::pair<std::string, Value>> members() const;
  // Arrays.
  std::vector<Value> items() const;
  // Scalars.
  const std::string& text() const;
  bool flag() const;
  uint64_t number(uint64_t least, uint64_t most) const;

  bool is_text() const { return json_->is_string(); }
  bool is_object() const { return json_->is_object(); }

 private:
  friend class Located;
  Value(const Located& file, const Json& json, const Located::Place& place)
      : file_(&file), json_(&json), place_(&place) {}
  void expect(bool right, const char* what) const;

  const Located* file_;
  const Json* json_;
  const Located::Place* place_;
};

// A list of texts; if `one`, a single text is a list of one.
std::vector<std::string> texts(const Value& value, bool one = false);

// The nearest name in `known`, as a hint: "did you mean 'x'?", or all of them
// if none is near.
std::string known_names(std::string_view name,
                        const std::vector<std::string>& known);

}  // namespace ckpt::families
