// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/dict.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "ckpt/error.h"

namespace ckpt::pickle {
namespace {

constexpr size_t kLongestTuple = 16;
// Smaller dicts are searched key by key: an index would be larger than they
// are.
constexpr uint32_t kIndexFrom = 32;  // elements, that is 16 keys

// The integer equal to a float, if there is one.
std::optional<int64_t> as_integer(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!(value >= -kLimit && value < kLimit) || std::floor(value) != value)
    return std::nullopt;
  return static_cast<int64_t>(value);
}

}  // namespace

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t hash_text(Type type, std::string_view text) {
  uint64_t hash = mix(text.size() + (static_cast<uint64_t>(type) << 56));
  while (text.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data(), 8);
    hash = mix(hash * 0x9E3779B97F4A7C15u + word);
    text.remove_prefix(8);
  }
  uint64_t word = 0;
  if (!text.empty()) std::memcpy(&word, text.data(), text.size());
  return mix(hash * 0x9E3779B97F4A7C15u + word);
}

void Document::Index::insert(uint32_t hash, uint32_t position,
                             tree_memory::Charge& charge) {
  if (2 * (used + 1) > slots.size()) {
    charge.add(std::max<size_t>(64, slots.size()) * sizeof(Slot));
    std::vector<Slot> old(std::max<size_t>(64, 2 * slots.size()));
    old.swap(slots);
    for (const Slot& slot : old) {
      if (slot.position != kNoId) place(slot);
    }
  }
  place({hash, position});
  ++used;
}

void Document::Index::place(Slot slot) {
  const size_t mask = slots.size() - 1;
  size_t i = slot.hash & mask;
  while (slots[i].position != kNoId) i = (i + 1) & mask;
  slots[i] = slot;
}

bool Document::same_key(Id a, Id b) const {
  if (a == b) return true;
  const Node& x = at(a);
  const Node& y = at(b);
  // Most keys are short texts, of which equal ones are one value.
  if (x.type == Type::kString && y.type == Type::kString &&
      (x.count != y.count || x.count <= kLongestShared))
    return false;
  const auto number = [this](Id id) -> std::optional<int64_t> {
    if (nodes_[id].type == Type::kFloat)
      return as_integer(nodes_[id].payload.real);
    return as_int(id);
  };
  if (const auto n = number(a)) return n == number(b);
  if (x.type != y.type) return false;
  switch (x.type) {
    case Type::kNone:
      return true;
    case Type::kFloat:
      return x.payload.real == y.payload.real;
    case Type::kBigInt:
    case Type::kString:
    case Type::kBytes:
    case Type::kGlobal:
      return x.count <= kLongestKey && stored(x) == stored(y);
    default:
      break;
  }
  if (x.type != Type::kTuple || x.count > kLongestTuple || x.count != y.count)
    return false;
  for (uint32_t i = 0; i < x.count; ++i) {
    const Id left = elements(x)[i], right = elements(y)[i];
    if (left == right) continue;
    if (at(left).type == Type::kTuple || !same_key(left, right)) return false;
  }
  return true;
}

uint32_t Document::hash_key(Id key) const {
  return static_cast<uint32_t>(full_hash(key) >> 32);
}

uint64_t Document::full_hash(Id key) const {
  const Node& node = at(key);
  switch (node.type) {
    case Type::kNone:
      return mix(1);
    case Type::kBool:
    case Type::kInt:
      return mix(static_cast<uint64_t>(node.payload.integer) + 2);
    case Type::kFloat:
      if (const auto n = as_integer(node.payload.real))
        return mix(static_cast<uint64_t>(*n) + 2);
      return mix(std::bit_cast<uint64_t>(node.payload.real));
    case Type::kBigInt:
    case Type::kString:
    case Type::kBytes:
    case Type::kGlobal:
      if (node.count <= kLongestKey) return hash_text(node.type, stored(node));
      break;
    case Type::kTuple:
      if (node.count <= kLongestTuple) {
        uint64_t hash = node.count;
        for (const Id item : std::span(elements(node), node.count)) {
          const bool nested = at(item).type == Type::kTuple;
          hash = mix(hash * 31 + (nested ? item : full_hash(item)));
        }
        return hash;
      }
      break;
    default:
      break;
  }
  return mix(uint64_t{key} << 32);
}

bool Document::Index::ascends(Type type, Id key) {
  ascending = ascending && type == Type::kCall && key > last;
  last = key;
  return ascending;
}

Document::Index& Document::index_of(Id dict) {
  std::unique_ptr<Index>& index = indexes_[dict];
  if (index != nullptr) return *index;
  charge_.add(sizeof(Index) + 64);
  index = std::make_unique<Index>();
  nodes_[dict].more = true;
  const std::span<const Id> pairs = items(dict);
  for (uint32_t i = 0; i < pairs.size() && index->ascending; i += 2)
    index->ascends(at(pairs[i]).type, pairs[i]);
  for (uint32_t i = 0; i < pairs.size() && !index->ascending; i += 2)
    index->insert(hash_key(pairs[i]), i, charge_);
  return *index;
}

// Key by key: for dicts that have no index.
uint32_t Document::find_key(Id dict, Id key) {
  const std::span<const Id> pairs = items(dict);
  const bool short_text =
      at(key).type == Type::kString && at(key).count <= kLongestShared;
  for (uint32_t i = 0; i < pairs.size(); i += 2) {
    if (pairs[i] == key) return i;
    const bool other_text = short_text && at(pairs[i]).type == Type::kString;
    if (!other_text && same_key(pairs[i], key)) return i;
  }
  return kNoId;
}

void Document::set_pairs(Id dict, std::span<const Id> pairs) {
  if (pairs.size() % 2 != 0)
    throw bug_error({}, "{} keys and values", pairs.size());
  if (nodes_[dict].count + uint64_t{pairs.size()} > UINT32_MAX)
    throw resource_error({}, "a dict of more than 2^31 keys");
  Node& node = nodes_[dict];
  reserve(node, node.count + uint64_t{pairs.size()});
  Id* const all = elements(node);
  Index* index = node.more ? &index_of(dict) : nullptr;
  for (size_t i = 0; i < pairs.size(); i += 2) {
    const Id key = pairs[i];
    if (index == nullptr && node.count >= kIndexFrom) index = &index_of(dict);
    uint32_t hash = 0, found = kNoId;
    if (index == nullptr) {
      found = find_key(dict, key);
    } else if (!index->ascending || !index->ascends(at(key).type, key)) {
      if (index->used == 0)
        for (uint32_t k = 0; k < node.count; k += 2)
          index->insert(hash_key(all[k]), k, charge_);
      hash = hash_key(key);
      found =
          index->find(hash, [&](uint32_t k) { return same_key(all[k], key); });
    }
    if (found != kNoId) {
      all[found + 1] = pairs[i + 1];
      continue;
    }
    all[node.count] = key;
    all[node.count + 1] = pairs[i + 1];
    if (index != nullptr && !index->ascending)
      index->insert(hash, node.count, charge_);
    node.count += 2;
  }
}

}  // namespace ckpt::pickle
