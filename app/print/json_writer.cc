// SPDX-License-Identifier: Apache-2.0
#include "app/print/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/print/console.h"
#include "lib/text/json_text.h"

namespace ckpt::app {
namespace {

bool all_lines = false;

}  // namespace

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
  } else if (!first_) {
    out_ += ',';
  }
  first_ = false;
}

void JsonWriter::set_lines(bool lines) { all_lines = lines; }

JsonWriter& JsonWriter::begin_document(std::string_view command,
                                       bool into_file) {
  lines_ = all_lines && !into_file;
  begin_object();
  if (lines_) member("line", "document");
  return member("schema", fmt::format("ckpt/{}/1", command));
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  ++depth_;
  if (lines_ && depth_ == 2) {
    in_list_ = bracket == '[';
    list_begin_ = out_.size();
    printed_ = 0;
  }
  if (lines_ && depth_ == 3 && in_list_) line_begin_ = out_.size();
  out_ += bracket;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  first_ = false;
  --depth_;
  if (!lines_) return *this;
  if (depth_ == 2 && bracket == '}' && in_list_) end_line();
  if (depth_ == 1) {
    if (printed_ != 0) {
      out_.resize(list_begin_);
      out_ += std::to_string(printed_);
    }
    printed_ = 0;
    in_list_ = false;
  }
  return *this;
}

// Removes the object that has ended from the document.
void JsonWriter::end_line() {
  std::string line = "{\"line\":\"" + name_ + '"';
  const std::string_view object = std::string_view(out_).substr(line_begin_);
  if (object.size() > 2) line += ',';
  line += object.substr(1);
  print(line + '\n');
  ++printed_;
  out_.resize(list_begin_ + 1);
  first_ = true;
}

void JsonWriter::quote(std::string_view text) { text::append_json(out_, text); }

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  if (lines_ && depth_ == 1) name_ = name;
  quote(name);
  out_ += ':';
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  quote(text);
  return *this;
}

JsonWriter& JsonWriter::value(uint64_t number) {
  separate();
  const fmt::format_int digits(number);
  out_.append(digits.data(), digits.size());
  return *this;
}

JsonWriter& JsonWriter::value(int64_t number) {
  separate();
  const fmt::format_int digits(number);
  out_.append(digits.data(), digits.size());
  return *this;
}

// JSON has no nan or inf: they become the strings "nan", "inf" and "-inf".
JsonWriter& JsonWriter::value(double number) {
  if (!std::isfinite(number)) return value(fmt::format("{}", number));
  separate();
  fmt::format_to(std::back_inserter(out_), "{}", number);
  return *this;
}

JsonWriter& JsonWriter::value(bool truth) {
  separate();
  out_ += truth ? "true" : "false";
  return *this;
}

// nlohmann's dump() leaves characters that turn text around, and stands in for
// what is not UTF-8 with one character for all, so that two keys become one.
JsonWriter& JsonWriter::tree(const nlohmann::ordered_json& tree) {
  const bool lines = std::exchange(lines_, false);  // a tree is one value
  if (tree.is_object()) {
    begin_object();
    for (const auto& [name, item] : tree.items()) key(name).tree(item);
    end_object();
  } else if (tree.is_array()) {
    begin_array();
    for (const auto& item : tree) this->tree(item);
    end_array();
  } else if (tree.is_string()) {
    value(tree.get_ref<const std::string&>());
  } else {
    separate();
    out_ += tree.dump();
  }
  lines_ = lines;
  return *this;
}

JsonWriter& JsonWriter::null() {
  separate();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::text_or_null(std::string_view name,
                                     std::string_view text) {
  key(name);
  return text.empty() ? null() : value(text);
}

std::string JsonWriter::text() && {
  out_ += '\n';
  return std::move(out_);
}

}  // namespace ckpt::app
