// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/value.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "ckpt/error.h"
#include "lib/pickle/dict.h"

namespace ckpt::pickle {
namespace {

constexpr size_t kLargestBlock = size_t{1} << 20;

// constants_
constexpr size_t kNone = 0, kFalse = 1, kTrue = 2, kEmptyTuple = 3;

bool is_container(Type type) {
  return (type >= Type::kList && type <= Type::kDict) ||
         type == Type::kPersistent;
}

bool is_text(Type type) {
  return type == Type::kBigInt ||
         (type >= Type::kString && type <= Type::kByteArray);
}

}  // namespace

std::string_view name(Type type) {
  constexpr std::string_view kNames[] = {
      "None",  "bool",      "int",    "int",          "float", "str",
      "bytes", "bytearray", "list",   "tuple",        "set",   "frozenset",
      "dict",  "global",    "object", "persistent id"};
  return kNames[static_cast<size_t>(type)];
}

Document::Document() = default;
Document::Document(Document&&) noexcept = default;
Document& Document::operator=(Document&&) noexcept = default;
Document::~Document() = default;

void Document::throw_bad_id(Id id) const {
  throw bug_error({}, "value {} of a document of {}", id, size());
}

void Document::throw_bad_type(Id id, const char* wanted) const {
  throw bug_error({}, "value {} is a {}, not a {}", id, name(at(id).type),
                  wanted);
}

// --- access ---

bool Document::boolean(Id id) const {
  if (at(id).type != Type::kBool) throw_bad_type(id, "bool");
  return nodes_[id].payload.integer != 0;
}

int64_t Document::integer(Id id) const {
  if (at(id).type != Type::kInt) throw_bad_type(id, "64-bit int");
  return nodes_[id].payload.integer;
}

double Document::real(Id id) const {
  if (at(id).type != Type::kFloat) throw_bad_type(id, "float");
  return nodes_[id].payload.real;
}

// A global is stored as its module's length (4 bytes), module, name.
std::string_view Document::stored(const Node& node) const {
  return {node.payload.text, node.count};
}

std::string_view Document::text(Id id) const {
  const Node& node = at(id);
  if (node.type == Type::kGlobal)
    return stored(node).substr(4 + module(id).size());
  if (!is_text(node.type)) throw_bad_type(id, "text");
  return stored(node);
}

std::string_view Document::module(Id id) const {
  const Node& node = at(id);
  if (node.type != Type::kGlobal) throw_bad_type(id, "global");
  uint32_t size = 0;
  std::memcpy(&size, node.payload.text, sizeof size);
  return stored(node).substr(4, size);
}

const Id* Document::elements(const Node& node) const {
  return node.room == 0 ? node.payload.ids
                        : children_.data() + node.payload.offset;
}

Id* Document::elements(Node& node) {
  return node.room == 0 ? node.payload.ids
                        : children_.data() + node.payload.offset;
}

std::span<const Id> Document::items(Id id) const {
  const Node& node = at(id);
  if (!is_container(node.type)) throw_bad_type(id, "container");
  return {elements(node), node.count};
}

Call Document::call(Id id) const {
  const Node& node = at(id);
  if (node.type != Type::kCall) throw_bad_type(id, "call");
  Call call;
  call.callable = node.count;
  if (node.room == kRecord) {
    call.how = How::kNewObj;
    call.args = constants_[kEmptyTuple];
  } else {
    call.how = static_cast<How>(node.room);
    call.args = node.payload.call.args;
    call.state = node.payload.call.state;
  }
  if (node.more) {
    const Extra& extra = extras_.at(id);
    call.kwargs = extra.kwargs;
    if (extra.items != kNoId) call.items = items(extra.items);
    if (extra.pairs != kNoId) call.pairs = items(extra.pairs);
  }
  return call;
}

Id Document::callable(Id id) const {
  const Node& node = at(id);
  if (node.type != Type::kCall) throw_bad_type(id, "call");
  return node.count;
}

Known Document::known(Id id) const {
  const Node& node = at(id);
  const bool named = node.type == Type::kGlobal || node.type == Type::kCall;
  return named ? node.known : Known::kOther;
}

// --- scalars ---

Id Document::add_node(Type type, uint64_t count, Payload payload) {
  if (count > UINT32_MAX || nodes_.size() >= kNoId)
    throw resource_error({}, "a value tree of more than 2^32 values");
  nodes_.push_back(
      {type, 0, Known::kOther, false, static_cast<uint32_t>(count), payload});
  return static_cast<Id>(nodes_.size() - 1);
}

Id Document::add_constant(size_t which, Type type, Payload payload) {
  if (constants_[which] == kNoId)
    constants_[which] = add_node(type, 0, payload);
  return constants_[which];
}

Id Document::add_none() {
  return add_constant(kNone, Type::kNone, {.integer = 0});
}

Id Document::add_bool(bool value) {
  return add_constant(value ? kTrue : kFalse, Type::kBool, {.integer = value});
}

// A small direct-mapped cache: checkpoints repeat the same sizes and offsets
// millions of times. It grows with the document.
Id& Document::recent(uint64_t hash) {
  constexpr size_t kFirst = 256, kLast = size_t{1} << 14;
  if (recent_.empty() ||
      (recent_.size() < kLast && nodes_.size() > 16 * recent_.size()))
    recent_.assign(recent_.empty() ? kFirst : 4 * recent_.size(), kNoId);
  return recent_[hash & (recent_.size() - 1)];
}

Id Document::add_scalar(Type type, Payload payload) {
  const uint64_t tag = static_cast<uint64_t>(type) << 56;
  const uint64_t bits = std::bit_cast<uint64_t>(payload.integer);
  Id& known = recent(mix(bits ^ tag));
  if (known != kNoId && nodes_[known].type == type &&
      nodes_[known].payload.integer == payload.integer)
    return known;
  return known = add_node(type, 0, payload);
}

Id Document::add_int(int64_t value) {
  return add_scalar(Type::kInt, {.integer = value});
}

Id Document::add_float(double value) {
  return add_scalar(Type::kFloat, {.integer = std::bit_cast<int64_t>(value)});
}

Id Document::add_big_int(std::string_view decimal) {
  int64_t value = 0;
  const char* end = decimal.data() + decimal.size();
  const auto [stop, error] = std::from_chars(decimal.data(), end, value);
  if (error == std::errc() && stop == end) return add_int(value);
  return add_text(Type::kBigInt, decimal);
}

// --- texts ---

char* Document::allocate(size_t size) {
  if (size > block_left_) {
    const size_t wanted = std::min(
        kLargestBlock, size_t{4096} << std::min<size_t>(blocks_.size(), 8));
    const bool own = size > wanted / 4;
    charge_.add(own ? size : wanted);
    blocks_.push_back(
        std::make_unique_for_overwrite<char[]>(own ? size : wanted));
    if (own) return blocks_.back().get();
    block_at_ = blocks_.back().get();
    block_left_ = wanted;
  }
  char* at = block_at_;
  block_at_ += size;
  block_left_ -= size;
  return at;
}

template <class Same, class Add>
Id Document::add_once(uint64_t hash, Same same, Add add) {
  if (texts_ == nullptr) texts_ = std::make_unique<Index>();
  const auto key = static_cast<uint32_t>(hash >> 32);
  const Id known = texts_->find(key, same);
  if (known != kNoId) return known;
  const Id id = add();
  texts_->insert(key, id, charge_);
  return id;
}

Id Document::add_text(Type type, std::string_view text) {
  if (!is_text(type)) throw bug_error({}, "text as a {}", name(type));
  const auto add = [&] {
    char* at = text.empty() ? nullptr : allocate(text.size());
    if (at != nullptr) std::memcpy(at, text.data(), text.size());
    return add_node(type, text.size(), {.text = at});
  };
  // A bytearray is mutable: two of them are two values.
  if (text.size() > kLongestShared || type == Type::kByteArray) return add();
  const auto same = [&](Id known) {
    return nodes_[known].type == type && stored(nodes_[known]) == text;
  };
  return add_once(hash_text(type, text), same, add);
}

Id Document::add_string(std::string_view text) {
  return add_text(Type::kString, text);
}

Id Document::add_global(std::string_view module, std::string_view name) {
  if (module.size() > UINT32_MAX)
    throw resource_error({}, "a module name of {} bytes", module.size());
  const auto same = [&](Id known) { return is_global(known, module, name); };
  const auto add = [&] {
    const auto size = static_cast<uint32_t>(module.size());
    const size_t total = sizeof size + module.size() + name.size();
    char* at = allocate(total);
    std::memcpy(at, &size, sizeof size);
    std::ranges::copy(module, at + sizeof size);
    std::ranges::copy(name, at + sizeof size + module.size());
    const Id id = add_node(Type::kGlobal, total, {.text = at});
    nodes_[id].known = known_global(module, name);
    return id;
  };
  const uint64_t hash = hash_text(Type::kGlobal, module);
  return add_once(mix(hash ^ hash_text(Type::kString, name)), same, add);
}

// --- containers ---

// Makes room for `count` elements. A growing container gets twice the room, so
// that filling one in batches copies each element once or twice.
void Document::reserve(Node& node, uint64_t count) {
  uint64_t room = 2;
  if (node.room == kExact)
    room = node.count;
  else if (node.room != 0)
    room = uint64_t{1} << node.room;
  if (count <= room) return;

  const bool first = node.count == 0;
  const int bits = static_cast<int>(std::bit_width(count - 1));
  const uint64_t wanted = first ? count : uint64_t{1} << bits;
  const uint64_t at = children_.extend(wanted);
  const Id* old = elements(node);
  std::copy(old, old + node.count, children_.data() + at);
  node.payload.offset = at;
  node.room = first ? kExact : static_cast<uint8_t>(bits);
}

Id Document::add_items(Type type, std::span<const Id> items) {
  if (type == Type::kTuple && items.empty())
    return add_constant(kEmptyTuple, type, {.integer = 0});
  if (items.size() > 2) {
    const Id id = add_node(type, 0, {.integer = 0});
    append_items(id, items);
    return id;
  }
  Payload payload{.integer = 0};
  std::ranges::copy(items, payload.ids);
  return add_node(type, items.size(), payload);
}

void Document::append_items(Id container, std::span<const Id> items) {
  Node& node = nodes_[container];
  const uint64_t count = node.count + uint64_t{items.size()};
  if (count > UINT32_MAX)
    throw resource_error({}, "a container of {} elements", count);
  reserve(node, count);
  std::ranges::copy(items, elements(node) + node.count);
  node.count = static_cast<uint32_t>(count);
}

Id Document::add_container(Type type, const std::vector<Id>& items) {
  if (!is_container(type)) throw bug_error({}, "a {} of items", name(type));
  if (type != Type::kDict) return add_items(type, items);
  const Id dict = add_items(type, {});
  set_pairs(dict, items);
  return dict;
}

Id Document::add_persistent(Id persistent_id) {
  const Id id = add_node(Type::kPersistent, 1, {.integer = 0});
  nodes_[id].payload.ids[0] = persistent_id;
  return id;
}

void Document::append(Id container, Id item) {
  append_items(items_of(container), {&item, 1});
}

void Document::set(Id dict, Id key, Id value) {
  const Id pair[] = {key, value};
  set_pairs(pairs_of(dict), pair);
}

void Document::set(Id dict, std::string_view key, Id value) {
  set(dict, add_string(key), value);
}

// --- calls ---

Id Document::add_call(Id callable, Id args) {
  const Known known = this->known(callable);
  const bool global = at(callable).type == Type::kGlobal;
  const Id id =
      add_node(Type::kCall, callable, {.call = {.args = args, .state = kNoId}});
  if (global) nodes_[id].known = known;
  return id;
}

Id Document::add_call(const Call& call) {
  const std::vector<Id> items(call.items.begin(), call.items.end());
  const std::vector<Id> pairs(call.pairs.begin(), call.pairs.end());
  const Id id = add_call(call.callable, call.args);
  nodes_[id].room = static_cast<uint8_t>(call.how);
  nodes_[id].payload.call.state = call.state;
  if (call.kwargs != kNoId) {
    extra_of(id).kwargs = call.kwargs;
  }
  if (!items.empty()) append_items(items_of(id), items);
  if (!pairs.empty()) set_pairs(pairs_of(id), pairs);
  return id;
}

void Document::set_state(Id call, Id state) {
  if (at(call).type != Type::kCall) throw_bad_type(call, "call");
  nodes_[call].payload.call.state = state;
}

Document::Extra& Document::extra_of(Id call) {
  constexpr uint64_t kEntry = 64;  // of the map, as malloc rounds
  if (!nodes_[call].more) charge_.add(kEntry);
  nodes_[call].more = true;
  return extras_[call];
}

Id Document::items_of(Id container) {
  const Type type = at(container).type;
  if (type == Type::kList || type == Type::kSet || type == Type::kFrozenSet)
    return container;
  if (type != Type::kCall) throw_bad_type(container, "list");
  Extra& extra = extra_of(container);
  if (extra.items == kNoId) extra.items = add_items(Type::kList, {});
  return extra.items;
}

Id Document::pairs_of(Id container) {
  const Type type = at(container).type;
  if (type == Type::kDict) return container;
  if (type != Type::kCall) throw_bad_type(container, "dict");
  Extra& extra = extra_of(container);
  if (extra.pairs == kNoId) extra.pairs = add_items(Type::kDict, {});
  return extra.pairs;
}

}  // namespace ckpt::pickle
