// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/data_types.h"

#include <algorithm>

#include "lib/text/number.h"

namespace ckpt::pickle {
namespace {

// What a type of objects has: LIST_PICKLE, REFCOUNT and others, all six.
constexpr uint64_t kObjectFlags = 63;
// What a type inherits from an object in it: REFCOUNT, LIST_PICKLE, NEEDS_INIT,
// NEEDS_PYAPI.
constexpr uint64_t kInherited = 27;
constexpr uint64_t kHuge = uint64_t{1} << 56;

uint64_t product(uint64_t a, uint64_t b) {
  return b != 0 && a > kHuge / b ? kHuge : a * b;
}

}  // namespace

void DataTypes::resize(Type& type, uint64_t size) {
  type.least = type.sized ? std::min(type.least, size) : size;
  type.most = std::max(type.most, size);
  type.size = size;
  type.sized = true;
}

// "f4", "V12", "int64": of numbers, bytes or characters. Single letters have
// the machine's sizes: at least one byte, at most 32.
DataTypes::Type DataTypes::plain(std::string_view code) {
  Type type;
  uint64_t unit = 1;
  size_t letters = 1;
  for (const std::string_view word :
       {"uint", "int", "float", "complex", "bool"})
    if (code.starts_with(word)) letters = word.size();
  const char letter = code.empty() ? ' ' : code[0];
  if (std::string_view("?biufcSaUVmMBhHlLqQIefdg").find(letter) ==
      std::string_view::npos) {
    type.odd = true;
    return type;
  }
  type.flexible = letters == 1 && std::string_view("SaUV").find(letter) !=
                                      std::string_view::npos;
  if (letter == 'U' && letters == 1) unit = 4;
  code.remove_prefix(letters);
  const auto number = text::number(code);
  if (!code.empty() && (!number || *number >= kHuge)) {
    type.odd = true;
  } else if (number) {
    const uint64_t bytes = letters == 1 ? *number : (*number + 7) / 8;
    resize(type, product(bytes, unit));
  } else if (letters == 1 && (letter == '?' || letter == 'b')) {
    resize(type, 1);
  } else if (!type.flexible) {
    type.least = 1;
    type.most = 32;
  }
  return type;
}

uint64_t DataTypes::add(std::string_view code) {
  if (!code.empty() && std::string_view("<>=|").find(code[0]) != code.npos)
    code.remove_prefix(1);
  Type type;
  if (code == "O" || code == "O8" || code == "O4") {
    type.objects = type.built = true;
    type.flags = type.all_flags = kObjectFlags;
    resize(type, sizeof(void*));
  } else if (code.empty()) {
    type.flexible = true;
  } else {
    type = plain(code);
  }
  types_.push_back(type);
  return types_.size() - 1;
}

void DataTypes::build(uint64_t at, const State& state) {
  Type& type = types_[at];
  type.odd = type.odd || state.odd;
  if (state.odd) return;
  if (type.flexible && state.size) resize(type, *state.size);
  type.flags = state.flags;
  type.all_flags = type.built ? type.all_flags & state.flags : state.flags;
  type.built = true;
  if (state.fields) with_fields_.push_back({at, *state.fields});
  if (state.subarray) subarrays_.push_back({at, *state.subarray});
}

void DataTypes::set(uint64_t dict, std::optional<Part> part) {
  if (part)
    fields_.push_back({dict, *part});
  else if (odd_.empty() || odd_.back() != dict)
    odd_.push_back(dict);
}

std::optional<uint64_t> DataTypes::size(uint64_t type) const {
  if (!types_[type].sized) return std::nullopt;
  return types_[type].size;
}

// Each type with each of its parts; nothing if there are too many: hostile
// types may share one dict of many fields.
std::optional<std::vector<DataTypes::Link>> DataTypes::links() const {
  constexpr size_t kMost = 1'000'000;
  std::vector<Field> sorted(fields_.data(), fields_.data() + fields_.size());
  std::ranges::stable_sort(sorted, {}, &Field::dict);
  std::vector<Link> links;
  for (size_t i = 0; i < subarrays_.size(); ++i)
    links.push_back({subarrays_[i].type, subarrays_[i].part, true});
  for (size_t i = 0; i < with_fields_.size(); ++i) {
    const uint64_t dict = with_fields_[i].dict;
    const auto begin = std::ranges::lower_bound(sorted, dict, {}, &Field::dict);
    for (auto field = begin; field != sorted.end() && field->dict == dict;
         ++field)
      links.push_back({with_fields_[i].type, field->part, false});
    if (links.size() > kMost) return std::nullopt;
  }
  return links;
}

// Which types hold pointers, themselves or in their parts; empty if they are
// nested too deep, or in themselves.
std::vector<bool> DataTypes::holders(const std::vector<Link>& links) const {
  constexpr int kDeepest = 64;
  std::vector<bool> holds(types_.size());
  for (size_t i = 0; i < types_.size(); ++i) holds[i] = types_[i].objects;
  for (int depth = 0; depth < kDeepest; ++depth) {
    bool changed = false;
    for (const Link& link : links) {
      if (!holds[link.part.type] || holds[link.type]) continue;
      holds[link.type] = changed = true;
    }
    if (!changed) return holds;
  }
  return {};
}

bool DataTypes::fits(const Link& link, const std::vector<bool>& holds) const {
  const Type& outer = types_[link.type];
  const Part& part = link.part;
  const Type& inner = types_[part.type];
  const uint64_t end = link.counts ? product(inner.most, part.number)
                                   : std::min(part.number, kHuge) + inner.most;
  return end <= outer.least &&
         (!holds[part.type] || (outer.all_flags & kInherited) == kInherited);
}

bool DataTypes::hide() const {
  for (size_t i = 0; i < types_.size(); ++i)
    if (types_[i].odd ||
        (types_[i].objects && types_[i].all_flags != kObjectFlags))
      return true;
  std::vector<uint64_t> odd(odd_.data(), odd_.data() + odd_.size());
  std::ranges::sort(odd);
  for (size_t i = 0; i < with_fields_.size(); ++i)
    if (std::ranges::binary_search(odd, with_fields_[i].dict)) return true;
  const auto links = this->links();
  if (!links) return true;
  const std::vector<bool> holds = holders(*links);
  return holds.size() != types_.size() ||
         !std::ranges::all_of(
             *links, [&](const Link& link) { return fits(link, holds); });
}

}  // namespace ckpt::pickle
