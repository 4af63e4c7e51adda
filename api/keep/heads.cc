// SPDX-License-Identifier: Apache-2.0
#include "api/keep/heads.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "ckpt/error.h"
#include "containers/gguf/header.h"
#include "containers/safetensors/header.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/other_json.h"

namespace ckpt::library {
namespace {

using nlohmann::ordered_json;
using pickle::Document;
using pickle::Id;

constexpr uint64_t kSniffed = 64;
constexpr size_t kShown = 8;      // items of a list
constexpr uint64_t kAligned = 8;  // safetensors' data begin at a multiple

bool is_ggml(const io::Handle& file) {
  return file.size() >= gguf::kMagic.size() &&
         file.read_string(0, gguf::kMagic.size()) == gguf::kMagic;
}

// ------------------------------------------------------------- safetensors

void add_change(std::vector<Edited::Change>& changes, Edited::Change change) {
  if (change.before != change.after) changes.push_back(std::move(change));
}

Head plain_head(const io::Handle& file, const std::vector<Wish>& wishes) {
  const safetensors::Header header = safetensors::read_header(file);
  Head head{.bytes = {}, .old_size = header.data_begin, .changes = {}};
  const std::string text = file.read_string(8, header.data_begin - 8);
  const auto old = text::parse_or_discard<ordered_json>(text);
  if (!old.is_object())
    throw input_error({file.path(), {}}, "the header is not a JSON object");
  ordered_json metadata = ordered_json::object();
  if (old.contains(safetensors::kMetadata))
    metadata = old.at(std::string(safetensors::kMetadata));
  for (const Wish& wish : wishes) {
    if (!wish.type.empty())
      throw usage_error({file.path(), {}},
                        "--set {}: values in this file are text, without types",
                        text::printable(wish.key));
    Edited::Change change{.key = wish.key, .before = {}, .after = {}};
    if (const auto found = metadata.find(wish.key); found != metadata.end())
      change.before = found->get<std::string>();
    if (!wish.unset) change.after = wish.value;
    if (wish.unset)
      metadata.erase(wish.key);
    else
      metadata[wish.key] = wish.value;
    add_change(head.changes, std::move(change));
  }
  if (head.changes.empty()) return head;
  ordered_json fresh = ordered_json::object();
  if (!metadata.empty())
    fresh[std::string(safetensors::kMetadata)] = std::move(metadata);
  for (const auto& [name, entry] : old.items())
    if (name != safetensors::kMetadata) fresh[name] = entry;
  std::string json;
  try {
    json = fresh.dump();
  } catch (const nlohmann::json::exception&) {
    throw usage_error({file.path(), {}}, "--set: the text is not UTF-8");
  }
  json.resize((json.size() + kAligned - 1) / kAligned * kAligned, ' ');
  // A header that fits leaves the tensors where they are: all of their blocks
  // can be shared.
  if (json.size() + 8 < head.old_size) json.resize(head.old_size - 8, ' ');
  if (json.size() > safetensors::kMaxHeader)
    throw usage_error({file.path(), {}},
                      "--set: the header gets {} bytes; readers take {}",
                      json.size(), safetensors::kMaxHeader);
  for (size_t i = 0; i < 8; ++i)
    head.bytes += static_cast<char>(uint64_t{json.size()} >> (8 * i) & 0xff);
  head.bytes += json;
  return head;
}

// -------------------------------------------------------------------- GGUF

[[noreturn]] void wrong_value(const Wish& wish, const std::string& type) {
  throw usage_error({}, "--set {}: '{}' is not a value of type {}",
                    text::printable(wish.key), text::printable(wish.value),
                    text::printable(type));
}

bool is_whole_number(const std::string& text) {
  const size_t digits = text.starts_with('-') ? 1 : 0;
  return text.size() > digits && text.size() < digits + 21 &&
         text.find_first_not_of("0123456789", digits) == text.npos;
}

Id value_of(Document& document, const Wish& wish, const std::string& type,
            const std::string& text) {
  if (type == "str") return document.add_string(text);
  if (type == "bool") {
    if (text != "true" && text != "false") wrong_value(wish, type);
    return document.add_bool(text == "true");
  }
  if (type == "f32" || type == "f64") {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || text[0] == ' ') wrong_value(wish, type);
    return document.add_float(number);
  }
  if (!is_whole_number(text)) wrong_value(wish, type);
  return document.add_big_int(text);
}

Id list_of(Document& document, const Wish& wish, const std::string& type) {
  const auto list = text::parse_or_discard(wish.value);
  if (!list.is_array()) wrong_value(wish, type);
  std::vector<Id> items;
  for (const auto& one : list)
    items.push_back(
        value_of(document, wish, type.substr(4),
                 one.is_string() ? one.get<std::string>() : one.dump()));
  return document.add_container(pickle::Type::kList, items);
}

// Plain text, as --set takes it: 0.5, true, ["a","b"]. An f32 has as many
// digits as tell it from its neighbours. At most so many items of a list.
std::string text_of(const Document& document, Id value, const std::string& type,
                    size_t most = SIZE_MAX, bool in_list = false) {
  switch (document.type(value)) {
    case pickle::Type::kString:
      return in_list ? nlohmann::json(document.text(value))
                           .dump(-1, ' ', false,
                                 nlohmann::json::error_handler_t::replace)
                     : std::string(document.text(value));
    case pickle::Type::kBool:
      return document.boolean(value) ? "true" : "false";
    case pickle::Type::kInt:
      return std::to_string(document.integer(value));
    case pickle::Type::kBigInt:
      return std::string(document.text(value));
    case pickle::Type::kFloat:
      return type.ends_with("f32")
                 ? fmt::format("{}", static_cast<float>(document.real(value)))
                 : fmt::format("{}", document.real(value));
    default:
      break;
  }
  std::string text;
  const auto items = document.items(value);
  for (size_t i = 0; i < std::min(items.size(), most); ++i)
    text += (i == 0 ? "" : ",") +
            text_of(document, items[i], type, most, /*in_list=*/true);
  if (items.size() > most)
    text += fmt::format(", {} more", items.size() - most);
  return "[" + text + "]";
}

void set_key(gguf::Header& header, const Wish& wish, const std::string& path) {
  constexpr auto kTypes = std::to_array<std::string_view>(
      {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64",
       "bool", "str"});
  const auto found = std::ranges::find(header.keys, wish.key, &gguf::Key::name);
  const bool is_new = found == header.keys.end();
  std::string type = wish.type;
  if (type.empty() && is_new)
    throw usage_error({path, {}}, "--set {}: the key is new, and has no type",
                      text::printable(wish.key))
        .with_hint("--set '" + text::printable(wish.key) +
                   ":str=…' or :u32, :f32, :bool, :arr:str …");
  if (type.empty()) type = found->type;
  const bool list = type.starts_with("arr:");
  if (std::ranges::find(kTypes, list ? type.substr(4) : type) == kTypes.end())
    throw usage_error({path, {}}, "--set {}: no value of type {} can be given",
                      text::printable(wish.key), text::printable(type))
        .with_hint(
            "types: u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str, "
            "arr:TYPE");
  const Id value = list ? list_of(*header.document, wish, type)
                        : value_of(*header.document, wish, type, wish.value);
  if (is_new)
    header.keys.push_back({wish.key, type, value});
  else
    *found = {wish.key, type, value};
}

std::vector<gguf::Described> described(const gguf::Header& header) {
  std::vector<gguf::Described> tensors;
  for (const gguf::Entry& entry : header.entries)
    tensors.push_back({.name = entry.name,
                       .shape = entry.shape,
                       .type = entry.type->type,
                       .bytes = entry.bytes});
  return tensors;
}

Head typed_head(const io::Handle& file, const std::vector<Wish>& wishes) {
  gguf::Header header = gguf::read_header(file);
  Head head{.bytes = {}, .old_size = header.data_begin, .changes = {}};
  const std::vector<gguf::Described> tensors = described(header);
  const std::string same =
      gguf::encode_header(*header.document, header.keys, tensors).head;
  if (same != file.read_string(0, std::min(head.old_size, file.size())))
    throw unfaithful_error(
        {file.path(), {}},
        "its header can't be written back as it is (version {}{})",
        header.version, header.big_endian ? ", big-endian" : "")
        .with_hint("ckpt convert FILE NEW.gguf writes it anew, then edit that");
  for (const Wish& wish : wishes) {
    if (wish.key == gguf::kAlignment ||
        (wish.unset && wish.key == "general.architecture"))
      throw usage_error({file.path(), {}},
                        "{}: no file can be read with another one",
                        text::printable(wish.key));
    const auto find = [&] {
      return std::ranges::find(header.keys, wish.key, &gguf::Key::name);
    };
    Edited::Change change{.key = wish.key, .before = {}, .after = {}};
    std::string type, before, after;  // values to the last item
    if (const auto found = find(); found != header.keys.end()) {
      type = found->type;
      before = text_of(*header.document, found->value, type);
      change.before = text_of(*header.document, found->value, type, kShown);
    }
    if (!wish.unset) {
      set_key(header, wish, file.path());
      const gguf::Key& key = *find();
      after = text_of(*header.document, key.value, key.type);
      change.after = text_of(*header.document, key.value, key.type, kShown);
      // The same number in another type is a change, too.
      if (change.before == change.after && key.type != type && !type.empty()) {
        change.before = *change.before + " (" + type + ")";
        change.after = *change.after + " (" + key.type + ")";
      }
    } else if (find() != header.keys.end()) {
      header.keys.erase(find());
    }
    if (before != after || change.before != change.after)
      head.changes.push_back(std::move(change));
  }
  if (head.changes.empty()) return head;
  try {
    head.bytes =
        gguf::encode_header(*header.document, header.keys, tensors).head;
  } catch (const Error& error) {
    throw usage_error({file.path(), {}}, "--set {}: {}",
                      text::printable(error.where().tensor), error.problem());
  }
  return head;
}

// What a tensor is, and where its bytes are.
using Tensors = std::vector<std::pair<std::string, uint64_t>>;

Tensors tensors_in(const io::Handle& file) {
  Tensors found;
  if (is_ggml(file)) {
    for (const auto& entry : gguf::read_header(file).entries)
      found.emplace_back(fmt::format("{} {} {}", entry.name, entry.type->name,
                                     to_string(entry.shape)),
                         entry.begin);
  } else {
    for (const auto& entry : safetensors::read_header(file).entries)
      found.emplace_back(fmt::format("{} {} {}", entry.name, name(entry.dtype),
                                     to_string(entry.shape)),
                         entry.begin);
  }
  return found;
}

}  // namespace

std::vector<Wish> wishes_of(const EditOptions& options) {
  std::vector<Wish> wishes;
  std::set<std::string> seen;
  const auto add = [&](Wish wish) {
    if (wish.key.empty() || !seen.insert(wish.key).second)
      throw usage_error({}, "the key '{}' is {}", text::printable(wish.key),
                        wish.key.empty() ? "empty" : "given twice");
    wishes.push_back(std::move(wish));
  };
  for (const std::string& text : options.set) {
    const size_t equals = text.find('=');
    if (equals == text.npos)
      throw usage_error({}, "--set '{}': expected KEY=VALUE",
                        text::printable(text));
    add({.key = text.substr(0, equals),
         .type = {},
         .value = text.substr(equals + 1)});
  }
  for (const std::string& key : options.unset)
    add({.key = key, .type = {}, .value = {}, .unset = true});
  if (wishes.empty())
    throw usage_error({}, "nothing says what to change")
        .with_hint("--set KEY=VALUE or --unset KEY");
  return wishes;
}

bool has_head(const io::Handle& file) {
  const std::string head = file.read_string(0, std::min(file.size(), kSniffed));
  return is_ggml(file) || safetensors::looks_like_header(head, file.size());
}

Head new_head(const io::Handle& file, const std::vector<Wish>& wishes) {
  if (!is_ggml(file)) return plain_head(file, wishes);
  std::vector<Wish> typed = wishes;
  for (Wish& wish : typed)
    if (const size_t colon = wish.key.find(':');
        colon != std::string::npos && !wish.unset) {
      wish.type = wish.key.substr(colon + 1);
      wish.key.resize(colon);
    }
  return typed_head(file, typed);
}

void check_staged(const io::Handle& file, const io::Handle& staged,
                  const Head& head) {
  const uint64_t further = head.bytes.size() - head.old_size;  // may wrap
  Tensors want = tensors_in(file);
  for (auto& one : want) one.second += further;
  if (want != tensors_in(staged))
    throw bug_error({staged.path(), {}},
                    "the new header has not the tensors of the old one");
}

}  // namespace ckpt::library
