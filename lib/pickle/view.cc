// SPDX-License-Identifier: Apache-2.0
// Conveniences for reading: what a value is, without knowing how it was made.

#include "lib/pickle/dict.h"
#include "lib/pickle/value.h"

namespace ckpt::pickle {
namespace {

bool is_mapping(Known known) {
  return known == Known::kOrderedDict || known == Known::kCounter ||
         known == Known::kDefaultDict;
}

// The argument with a mapping's first pairs: the first one, except for
// defaultdict, whose first is the factory.
Id pairs_argument(const Document& document, const Call& call, Known known) {
  if (!document.is(call.args, Type::kTuple)) return kNoId;
  const std::span<const Id> args = document.items(call.args);
  const size_t at = known == Known::kDefaultDict ? 1 : 0;
  return at < args.size() ? args[at] : kNoId;
}

// Appends the key, value, … of a dict or of a list of pairs.
bool append_pairs(const Document& document, Id id, std::vector<Id>& pairs) {
  if (id == kNoId) return true;
  const Type type = document.type(id);
  if (type != Type::kDict && type != Type::kList && type != Type::kTuple)
    return false;
  const std::span<const Id> items = document.items(id);
  if (type == Type::kDict) {
    pairs.insert(pairs.end(), items.begin(), items.end());
    return true;
  }
  for (const Id item : items) {
    if (!document.is(item, Type::kTuple) && !document.is(item, Type::kList))
      return false;
    const std::span<const Id> pair = document.items(item);
    if (pair.size() != 2) return false;
    pairs.insert(pairs.end(), pair.begin(), pair.end());
  }
  return true;
}

}  // namespace

bool Document::is_global(Id id, std::string_view module,
                         std::string_view name) const {
  return is(id, Type::kGlobal) && text(id) == name &&
         this->module(id) == module;
}

bool Document::is_call(Id id, std::string_view module,
                       std::string_view name) const {
  return is(id, Type::kCall) && is_global(nodes_[id].count, module, name);
}

std::optional<int64_t> Document::as_int(Id id) const {
  if (!is(id, Type::kInt) && !is(id, Type::kBool)) return std::nullopt;
  return nodes_[id].payload.integer;
}

std::optional<double> Document::as_real(Id id) const {
  if (is(id, Type::kFloat)) return real(id);
  if (const auto whole = as_int(id)) return static_cast<double>(*whole);
  return std::nullopt;
}

std::string Document::callable_name(Id id) const {
  if (is(id, Type::kCall)) id = nodes_[id].count;
  if (!is(id, Type::kGlobal)) return {};
  return std::string(module(id)) + " " + std::string(text(id));
}

uint32_t Document::find_text(Id dict, std::string_view key) const {
  const std::span<const Id> pairs = items(dict);
  const auto same = [&](uint32_t position) {
    const Node& node = at(pairs[position]);
    return node.type == Type::kString && stored(node) == key;
  };
  if (nodes_[dict].more && key.size() <= kLongestKey)
    return indexes_.at(dict)->find(
        static_cast<uint32_t>(hash_text(Type::kString, key) >> 32), same);
  for (uint32_t i = 0; i < pairs.size(); i += 2) {
    if (same(i)) return i;
  }
  return kNoId;
}

Id Document::find(Id id, std::string_view key) const {
  Id dict = id;
  if (is(id, Type::kCall)) {
    if (!is_mapping(nodes_[id].known)) return kNoId;
    dict = nodes_[id].more ? extras_.at(id).pairs : kNoId;
  }
  if (is(dict, Type::kDict)) {
    const uint32_t found = find_text(dict, key);
    if (found != kNoId) return items(dict)[found + 1];
  }
  if (dict == id || !is(id, Type::kCall)) return kNoId;

  // The pairs of the argument, the last of equal keys first.
  std::vector<Id> pairs;
  const Id argument = pairs_argument(*this, call(id), nodes_[id].known);
  if (!append_pairs(*this, argument, pairs)) return kNoId;
  for (size_t i = pairs.size(); i >= 2; i -= 2) {
    if (is(pairs[i - 2], Type::kString) && text(pairs[i - 2]) == key)
      return pairs[i - 1];
  }
  return kNoId;
}

std::optional<std::vector<Id>> Document::as_pairs(Id id) const {
  std::vector<Id> pairs;
  if (is(id, Type::kDict)) {
    append_pairs(*this, id, pairs);
    return pairs;
  }
  if (!is(id, Type::kCall) || !is_mapping(nodes_[id].known))
    return std::nullopt;
  const Call call = this->call(id);
  const Id argument = pairs_argument(*this, call, nodes_[id].known);
  if (!append_pairs(*this, argument, pairs)) return std::nullopt;
  const bool unique = pairs.empty();  // as those of SETITEMS are
  pairs.insert(pairs.end(), call.pairs.begin(), call.pairs.end());
  if (!unique) unique_pairs(pairs);
  return pairs;
}

// A key's last value wins, and its first position stays.
void Document::unique_pairs(std::vector<Id>& pairs) const {
  Index index;
  tree_memory::Charge charge;
  size_t kept = 0;
  for (size_t i = 0; i < pairs.size(); i += 2) {
    const uint32_t hash = hash_key(pairs[i]);
    const uint32_t found = index.find(hash, [&](uint32_t position) {
      return same_key(pairs[position], pairs[i]);
    });
    if (found != kNoId) {
      pairs[found + 1] = pairs[i + 1];
      continue;
    }
    index.insert(hash, static_cast<uint32_t>(kept), charge);
    pairs[kept] = pairs[i];
    pairs[kept + 1] = pairs[i + 1];
    kept += 2;
  }
  pairs.resize(kept);
}

}  // namespace ckpt::pickle
