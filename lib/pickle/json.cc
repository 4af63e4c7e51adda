// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/json.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "lib/pickle/codecs.h"
#include "lib/pickle/json_builder.h"
#include "lib/pickle/whole_json.h"
#include "lib/text/format.h"

namespace ckpt::pickle {
namespace {

// A value's level takes up to four levels of JSON, and Python's json module
// refuses a thousand.
constexpr uint32_t kDeepest = 200;
constexpr size_t kLongestBytes = 4096;
constexpr size_t kShownBytes = 64;            // of longer ones
constexpr int64_t kExact = int64_t{1} << 53;  // JSON readers use doubles

Json tagged(const char* tag, Json value) {
  Json object = Json::object();
  object[tag] = std::move(value);
  return object;
}

Json bytes_json(const char* tag, std::string_view bytes, bool whole) {
  if (whole || bytes.size() <= kLongestBytes)
    return tagged(tag, hex_text(bytes));
  Json object = tagged(tag, hex_text(bytes.substr(0, kShownBytes)));
  object["size"] = bytes.size();
  return object;
}

Json string_json(std::string_view text) {
  if (!has_surrogates(text)) return std::string(text);
  std::string utf16;
  const auto put = [&utf16](char32_t unit) {
    utf16 += static_cast<char>(unit & 0xFF);
    utf16 += static_cast<char>(unit >> 8 & 0xFF);
  };
  while (!text.empty()) {
    const char32_t code = next_char(text);
    if (code >= 0x10000) put(0xD800 + ((code - 0x10000) >> 10));
    put(code < 0x10000 ? code : 0xDC00 + (code & 0x3FF));
  }
  return tagged("!str_surrogates", hex_text(utf16));
}

// Sets have no order: sorts their elements' JSON texts as Python does.
void sort_items(std::vector<Json>& items) {
  std::vector<std::pair<std::string, size_t>> keys;
  for (const Json& item : items)
    keys.emplace_back(nlohmann::json(item).dump(-1, ' ', true), keys.size());
  std::ranges::sort(keys);
  std::vector<Json> sorted;
  for (const auto& key : keys) sorted.push_back(std::move(items[key.second]));
  items = std::move(sorted);
}

}  // namespace

std::string hex_text(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const char c : bytes) {
    hex += kDigits[static_cast<uint8_t>(c) >> 4];
    hex += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return hex;
}

std::string float_text(double value) {
  std::string text = fmt::format("{}", value);
  const bool whole = text.find_first_not_of("-0123456789") == text.npos;
  return whole ? text + ".0" : text;
}

std::string json_text(std::string_view text) {
  return has_surrogates(text) ? text::printable(text) : std::string(text);
}

Json int_json(int64_t value) {
  if (value > -kExact && value < kExact) return value;
  return tagged("!int", std::to_string(value));
}

Json to_json(const Document& document, Id root, uint64_t budget,
             const NameTensor& name_tensor) {
  return JsonBuilder(document, budget, name_tensor).run(root);
}

std::string whole_json(const Document& document, Id root,
                       const std::string& name) {
  const NameTensor nameless;
  try {
    return JsonBuilder(document, UINT64_MAX, nameless, true)
        .run(root)
        .dump(-1, ' ', false, Json::error_handler_t::replace);
  } catch (const Error& error) {
    throw unfaithful_error({{}, name}, "{}", error.problem());
  }
}

Json JsonBuilder::run(Id root) {
  Json result;
  places_.push_back({kNoId, 0, {}});
  tasks_.push_back({root, &result, 0});
  while (!tasks_.empty()) {
    const Task task = tasks_.back();
    tasks_.pop_back();
    show(task);
  }
  return result;
}

void JsonBuilder::show(const Task& task) {
  if (task.id == kNoId) {
    sort_items(task.slot->get_ref<Json::array_t&>());
    return;
  }
  if (show_scalar(task.id, *task.slot) || show_reference(task)) return;
  if (places_[task.place].depth > kDeepest) {
    if (whole_)
      throw unfaithful_error({}, "values nest more than {} levels deep",
                             kDeepest);
    *task.slot = tagged("!elided", 1);
    return;
  }
  switch (doc_.type(task.id)) {
    case Type::kDict:
      return show_dict(task, doc_.items(task.id));
    case Type::kCall:
      return show_call(task);
    case Type::kPersistent:
      return show_persistent(task);
    default:
      return show_items(task);
  }
}

bool JsonBuilder::show_scalar(Id id, Json& slot) {
  switch (doc_.type(id)) {
    case Type::kNone:
      slot = nullptr;
      return true;
    case Type::kBool:
      slot = doc_.boolean(id);
      return true;
    case Type::kInt:
      slot = int_json(doc_.integer(id));
      return true;
    case Type::kBigInt:
      slot = tagged("!int", std::string(doc_.text(id)));
      return true;
    case Type::kFloat:
      slot = tagged("!float", float_text(doc_.real(id)));
      return true;
    case Type::kString:
      slot = string_json(doc_.text(id));
      return true;
    case Type::kBytes:
      slot = bytes_json("!bytes", doc_.text(id), whole_);
      return true;
    case Type::kByteArray:
      slot = bytes_json("!bytearray", doc_.text(id), whole_);
      return true;
    case Type::kGlobal:
      show_global(id, slot);
      return true;
    default:
      return false;
  }
}

// Tuples, and calls shown as plain values, have no identity.
bool JsonBuilder::show_reference(const Task& task) {
  if (task.key || doc_.type(task.id) == Type::kTuple) return false;
  switch (doc_.known(task.id)) {
    case Known::kSize:
    case Known::kComplex:
    case Known::kDevice:
    case Known::kLayout:
      return false;
    default:
      break;
  }
  const auto [found, fresh] = seen_.emplace(task.id, task.place);
  if (fresh) return false;
  *task.slot = tagged("!ref", path(found->second, '/'));
  return true;
}

void JsonBuilder::show_items(const Task& task) {
  const std::span<const Id> items = doc_.items(task.id);
  if (doc_.type(task.id) == Type::kList)
    return fill_array(task, *task.slot, items);
  *task.slot = Json::object();
  const Type type = doc_.type(task.id);
  Json& array = member(*task.slot, "!" + std::string(name(type)));
  if (type != Type::kTuple) tasks_.push_back({kNoId, &array, task.place});
  fill_array(task, array, items);
}

bool JsonBuilder::all_plain_keys(std::span<const Id> pairs) const {
  for (size_t i = 0; i < pairs.size(); i += 2) {
    if (!doc_.is(pairs[i], Type::kString)) return false;
    const std::string_view key = doc_.text(pairs[i]);
    if (key.starts_with('!') || has_surrogates(key)) return false;
  }
  return true;
}

void JsonBuilder::show_dict(const Task& task, std::span<const Id> pairs) {
  *task.slot = Json::object();
  if (!all_plain_keys(pairs))
    return show_pairs(member(*task.slot, "!dict"), pairs, task);
  const uint64_t count = pairs.size() / 2;
  const uint64_t shown = spend(count);
  std::vector<Json*> slots;
  for (uint64_t i = 0; i < shown; ++i)
    member(*task.slot, std::string(doc_.text(pairs[2 * i])));
  if (shown < count) member(*task.slot, "!elided", count - shown);
  for (Json& slot : *task.slot) slots.push_back(&slot);
  for (uint64_t i = shown; i-- > 0;)
    fill(task, *slots[i], pairs[2 * i + 1],
         std::string(doc_.text(pairs[2 * i])));
}

// [[key, value], …]
void JsonBuilder::show_pairs(Json& slot, std::span<const Id> pairs,
                             const Task& task, const char* key_name) {
  const uint64_t count = pairs.size() / 2;
  const uint64_t shown = spend(count);
  slot = Json::array();
  for (uint64_t i = 0; i < shown; ++i)
    slot.push_back(Json::array({nullptr, nullptr}));
  if (shown < count) slot.push_back(tagged("!elided", count - shown));
  for (uint64_t i = shown; i-- > 0;) {
    const Id key = pairs[2 * i];
    fill(task, slot[i][1], pairs[2 * i + 1], key_text(key));
    const bool waits = fill(task, slot[i][0], key, key_name ? key_name : "");
    if (waits) tasks_.back().key = key_name == nullptr;
  }
}

// --- building ---

Json& JsonBuilder::member(Json& object, std::string key, Json value) {
  // The map's own emplace searches all keys; ours are unique.
  std::vector<std::pair<const std::string, Json>>& members =
      object.get_ref<Json::object_t&>();
  return members.emplace_back(std::move(key), std::move(value)).second;
}

bool JsonBuilder::fill(const Task& task, Json& slot, Id id, std::string key) {
  if (show_scalar(id, slot)) return false;
  places_.push_back(
      {task.place, places_[task.place].depth + 1, std::move(key)});
  tasks_.push_back({id, &slot, static_cast<uint32_t>(places_.size() - 1)});
  return true;
}

void JsonBuilder::fill_array(const Task& task, Json& slot,
                             std::span<const Id> ids) {
  const uint64_t shown = spend(ids.size());
  slot = Json::array();
  slot.get_ref<Json::array_t&>().resize(shown + (shown < ids.size()));
  if (shown < ids.size()) slot.back() = tagged("!elided", ids.size() - shown);
  for (uint64_t i = shown; i-- > 0;)
    fill(task, slot[i], ids[i], std::to_string(i));
}

uint64_t JsonBuilder::spend(uint64_t wanted) {
  const uint64_t shown = std::min(wanted, budget_);
  budget_ -= shown;
  return shown;
}

std::string JsonBuilder::path(uint32_t place, char separator) const {
  std::vector<std::string_view> keys;
  for (uint32_t at = place; places_[at].parent != kNoId;
       at = places_[at].parent)
    keys.push_back(places_[at].key);
  std::string text;
  for (size_t i = keys.size(); i-- > 0;) {
    text += json_text(keys[i]);
    if (i != 0) text += separator;
  }
  return text;
}

// Python's str() of a key, or its JSON; for tuples and objects, their kind.
std::string JsonBuilder::key_text(Id id) const {
  switch (doc_.type(id)) {
    case Type::kString:
    case Type::kBigInt:
      return std::string(doc_.text(id));
    case Type::kInt:
      return std::to_string(doc_.integer(id));
    case Type::kBool:
      return doc_.boolean(id) ? "True" : "False";
    case Type::kNone:
      return "null";
    case Type::kFloat:
      return float_text(doc_.real(id));
    default:
      return "(" + std::string(name(doc_.type(id))) + ")";
  }
}

}  // namespace ckpt::pickle
