// SPDX-License-Identifier: Apache-2.0
#include "app/print/value_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lib/text/format.h"

namespace ckpt::app {
namespace {

using Json = nlohmann::ordered_json;

class Writer {
 public:
  explicit Writer(size_t length) : length_(length) {}
  void write(const Json& value);
  std::string text() && { return std::move(out_); }

 private:
  bool full() const { return out_.size() > length_; }
  void items(const Json& list, std::string_view open, std::string_view close);
  void pairs(const Json& list);
  void plain(const Json& object);
  void tagged(std::string_view tag, const Json& value, const Json& object);
  void call(const Json& object);
  // "tensor(float32 [2, 3])"
  void array(std::string_view what, const Json& object, const char* dtype,
             const char* shape);
  void bytes(const Json& value, const Json& object);
  // A string as it is; anything else as JSON.
  void raw(const Json& value);

  const size_t length_;
  std::string out_;
};

std::string dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Writer::raw(const Json& value) {
  out_ += text::printable(
      value.is_string() ? value.get_ref<const std::string&>() : dumped(value));
}

void Writer::items(const Json& list, std::string_view open,
                   std::string_view close) {
  out_ += open;
  bool first = true;
  for (const Json& item : list) {
    if (full()) break;
    if (!std::exchange(first, false)) out_ += ", ";
    write(item);
  }
  out_ += close;
}

// [[key, value], …]
void Writer::pairs(const Json& list) {
  out_ += '{';
  bool first = true;
  for (const Json& pair : list) {
    if (full()) break;
    if (!pair.is_array() || pair.size() != 2) continue;
    if (!std::exchange(first, false)) out_ += ", ";
    write(pair[0]);
    out_ += ": ";
    write(pair[1]);
  }
  out_ += '}';
}

void Writer::plain(const Json& object) {
  out_ += '{';
  bool first = true;
  for (const auto& [key, value] : object.items()) {
    if (full()) break;
    if (!std::exchange(first, false)) out_ += ", ";
    out_ += text::printable(key) + ": ";
    write(value);
  }
  out_ += '}';
}

void Writer::array(std::string_view what, const Json& object, const char* dtype,
                   const char* shape) {
  out_ += what;
  out_ += '(';
  if (object.contains(dtype)) raw(object[dtype]);
  if (object.contains(shape)) {
    out_ += ' ';
    items(object[shape], "[", "]");
  }
  out_ += ')';
}

void Writer::bytes(const Json& value, const Json& object) {
  const std::string hex = value.is_string() ? value.get<std::string>() : "";
  out_ += hex.empty() ? "b''" : "0x" + hex;
  if (object.contains("size"))
    out_ += "… (" + dumped(object["size"]) + " bytes)";
}

// module.Class(args, kwargs) and the state it was given.
void Writer::call(const Json& object) {
  std::string name = object["!object"].is_string()
                         ? object["!object"].get<std::string>()
                         : "object";
  std::ranges::replace(name, ' ', '.');
  out_ += text::printable(name);
  const Json* args = object.contains("args") ? &object["args"] : nullptr;
  if (args != nullptr && args->is_object() && args->contains("!tuple")) {
    items((*args)["!tuple"], "(", ")");
  } else {
    out_ += "()";
  }
  for (const char* part : {"kwargs", "state", "items", "pairs"}) {
    if (full() || !object.contains(part) || object[part].is_null()) continue;
    out_ += ' ';
    if (std::string_view(part) == "pairs") {
      pairs(object[part]);
    } else {
      write(object[part]);
    }
  }
}

void Writer::tagged(std::string_view tag, const Json& value,
                    const Json& object) {
  if (tag == "!tuple") return items(value, "(", ")");
  if (tag == "!Size") return items(value, "[", "]");
  if (tag == "!set" || tag == "!frozenset") return items(value, "{", "}");
  if (tag == "!dict" || tag == "!OrderedDict" || tag == "!Counter")
    return pairs(value);
  if (tag == "!bytes" || tag == "!bytearray") return bytes(value, object);
  if (tag == "!tensor") return array("tensor", object, "dtype", "size");
  if (tag == "!storage") return array("storage", object, "type", "");
  if (tag == "!ndarray" || tag == "!ndarray_opaque")
    return array("ndarray", object, tag.data(), "shape");
  if (tag == "!np_scalar" && object.contains("value"))
    return write(object["value"]);
  if (tag == "!object") return call(object);
  if (tag == "!global") {
    std::string name = value.is_string() ? value.get<std::string>() : "";
    std::ranges::replace(name, ' ', '.');
    return void(out_ += text::printable(name));
  }
  if (tag == "!str_surrogates") {
    out_ += "utf-16 ";
    return raw(value);
  }
  if (tag == "!elided") return void(out_ += "…");
  if (tag == "!ref") return void(out_ += "<above>");
  if (tag == "!complex" && value.is_array() && value.size() == 2) {
    out_ += '(';
    raw(value[0]);
    out_ += ", ";
    raw(value[1]);
    out_ += "j)";
    return;
  }
  raw(value);
}

void Writer::write(const Json& value) {
  if (full()) return;
  if (value.is_array()) return items(value, "[", "]");
  if (value.is_null()) {
    out_ += "None";
  } else if (value.is_boolean()) {
    out_ += value.get<bool>() ? "True" : "False";
  } else if (!value.is_object()) {
    out_ += text::printable(dumped(value));
  } else if (!value.empty() && value.begin().key().starts_with("!")) {
    tagged(value.begin().key(), value.begin().value(), value);
  } else {
    plain(value);
  }
}

}  // namespace

std::string value_text(const Json& value, size_t length) {
  Writer writer(length);
  writer.write(value);
  return std::move(writer).text();
}

}  // namespace ckpt::app
