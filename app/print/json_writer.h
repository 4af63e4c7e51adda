// SPDX-License-Identifier: Apache-2.0
// Writes one JSON document front to back, without a tree in memory: 100,000
// tensors cost only their bytes.
//
//   JsonWriter json;
//   json.begin_object();
//   json.key("tensors").begin_array();
//   ...
//   json.end_array();
//   json.end_object();
//   print(json.text());
//
// With set_lines() a document is lines of JSON instead (--ndjson): the objects
// in its top-level lists are printed as they end, one per line, with the list's
// name before their members. The last line is the document, with the number of
// lines in place of each list.
//
//   {"line":"entries","name":"wte","dtype":"bf16",…}
//   {"line":"document","schema":"ckpt/ls/1","path":"gpt","entries":1}
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace ckpt::app {

class JsonWriter {
 public:
  static void set_lines(bool lines);

  // The outermost object of a command's document, up to its first member:
  // {"schema":"ckpt/inspect/1"
  // A document that goes into a file never goes by lines.
  JsonWriter& begin_document(std::string_view command, bool into_file = false);
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) {
    return value(std::string_view(text));
  }
  JsonWriter& value(uint64_t number);
  JsonWriter& value(int64_t number);
  JsonWriter& value(double number);  // nan and inf as strings
  JsonWriter& value(uint32_t number) { return value(uint64_t{number}); }
  JsonWriter& value(int number) { return value(int64_t{number}); }
  JsonWriter& value(bool truth);
  JsonWriter& tree(const nlohmann::ordered_json& tree);
  JsonWriter& null();

  // key and value in one call; "" becomes null in `text_or_null`.
  template <class T>
  JsonWriter& member(std::string_view name, const T& v) {
    return key(name).value(v);
  }
  JsonWriter& text_or_null(std::string_view name, std::string_view text);

  // The document, with a newline at its end.
  std::string text() &&;

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();
  void quote(std::string_view text);

  void end_line();

  std::string out_;
  size_t depth_ = 0;
  bool lines_ = false;     // this document goes by lines
  std::string name_;       // of the document's member
  bool in_list_ = false;   // that member is a list
  size_t list_begin_ = 0;  // where it stands in out_
  size_t line_begin_ = 0;  // where the object in it does
  uint64_t printed_ = 0;   // lines of that list
  bool first_ = true;      // nothing yet in the current object or array
  bool after_key_ = false;
};

}  // namespace ckpt::app
