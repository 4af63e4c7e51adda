// SPDX-License-Identifier: Apache-2.0
// Operations on a whole sharded state dict (megatron-core:
// dist_checkpointing/utils.py, mapping.py).
#include "api/mcore/tree.h"

#include <algorithm>
#include <array>

namespace ckpt::mcore {
namespace {

// The key of a sharded value; null for others.
std::string* key_of(State& state) {
  if (auto* tensor = state.as<ShardedTensor>()) return &tensor->key;
  if (auto* object = state.as<ShardedObject>()) return &object->key;
  if (auto* factory = state.as<ShardedTensorFactory>()) return &factory->key;
  return nullptr;
}

template <typename Change>
void change_keys(State& state, const Change& change) {
  walk_leaves(state, [&](State& leaf) {
    if (std::string* key = key_of(leaf)) change(*key);
  });
}

std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

State merge_at(State loaded, const State& factories, const std::string& path);
bool has_factory(const State& state);

void merge_dict(State& loaded, const Dict& factories, const std::string& path) {
  Dict* dict = loaded.as<Dict>();
  if (dict == nullptr)
    throw usage_error({{}, path},
                      "is a {} in what was loaded, and a dict in "
                      "what was asked for",
                      kind_of(loaded));
  for (const auto& [name, factory] : factories) {
    if (!has_factory(factory)) continue;
    const auto found = dict->find(name);
    if (found == dict->end())
      throw usage_error({{}, below(path, name)}, "was not loaded");
    found->second =
        merge_at(std::move(found->second), factory, below(path, name));
  }
}

void merge_list(State& loaded, const List& factories, const std::string& path) {
  List* list = loaded.as<List>();
  if (list == nullptr || list->size() != factories.size())
    throw usage_error({{}, path}, "{} members of a list for {}",
                      list == nullptr ? 0 : list->size(), factories.size());
  for (size_t i = 0; i < factories.size(); ++i)
    (*list)[i] = merge_at(std::move((*list)[i]), factories[i],
                          below(path, std::to_string(i)));
}

bool has_factory(const State& state) {
  bool found = false;
  walk_leaves(state, [&](const State& leaf) {
    found = found || leaf.as<ShardedTensorFactory>() != nullptr;
  });
  return found;
}

// A part without factories is as it was loaded, or was not requested.
State merge_at(State loaded, const State& factories, const std::string& path) {
  const Level level;
  if (const auto* factory = factories.as<ShardedTensorFactory>()) {
    if (!factory->merge)
      throw usage_error({{}, factory->key},
                        "its factory has no function that merges");
    return factory->merge(loaded);
  }
  if (const auto* dict = factories.as<Dict>()) merge_dict(loaded, *dict, path);
  const auto* list = factories.as<List>();
  if (list != nullptr && has_factory(factories))
    merge_list(loaded, *list, path);
  return loaded;
}

}  // namespace

const char* kind_of(const State& state) {
  static constexpr std::array kKinds{"plain value",    "tensor",
                                     "sharded tensor", "sharded object",
                                     "factory",        "value of this process",
                                     "dict",           "list"};
  static_assert(kKinds.size() == std::variant_size_v<State::Value>);
  return kKinds.at(state.value.index());
}

namespace {

// As deep as trees.h goes; a stack has room for much more.
constexpr size_t kMostLevels = 200;
thread_local size_t levels_now = 0;

// Moves dicts and lists that are not empty away from inside of `state`.
void take_nested(State& state, std::vector<State>& to) {
  const auto take = [&to](State& member) {
    const auto* dict = member.as<Dict>();
    const auto* list = member.as<List>();
    if ((dict && !dict->empty()) || (list && !list->empty()))
      to.push_back(std::move(member));
  };
  if (auto* dict = state.as<Dict>())
    for (auto& [name, member] : *dict) take(member);
  if (auto* list = state.as<List>())
    for (State& member : *list) take(member);
}

State::Value copy_of(const State& state) {
  const Level level;
  return state.value;
}

}  // namespace

Level::Level() {
  if (levels_now == kMostLevels)
    throw usage_error({}, "a state nests more than {} levels deep",
                      kMostLevels);
  ++levels_now;
}
Level::~Level() { --levels_now; }

State::State(const State& other) : value(copy_of(other)) {}
State::State(State&& other) noexcept = default;
State& State::operator=(const State& other) { return *this = State(other); }
// `other` may be a part of what is replaced.
State& State::operator=(State&& other) noexcept {
  Value taken = std::move(other.value);
  value = std::move(taken);
  return *this;
}
// Without recursion: a state may be deeper than the stack.
State::~State() {
  std::vector<State> nested;
  take_nested(*this, nested);
  while (!nested.empty()) {
    State last = std::move(nested.back());
    nested.pop_back();
    take_nested(last, nested);
  }
}

const State& State::at(const std::string& name) const {
  if (const Dict* dict = as<Dict>())
    if (const auto found = dict->find(name); found != dict->end())
      return found->second;
  throw usage_error({{}, name}, "is not in this {}", kind_of(*this));
}

void add_prefix_for_sharding(State& state, const std::string& prefix) {
  change_keys(state, [&](std::string& key) { key.insert(0, prefix); });
}

void replace_prefix_for_sharding(State& state, const std::string& from,
                                 const std::string& to) {
  change_keys(state, [&](std::string& key) {
    if (!key.starts_with(from))
      throw usage_error({{}, key}, "does not begin with '{}'", from);
    key.replace(0, from.size(), to);
  });
}

void apply_prefix_mapping(
    State& state, std::span<const std::pair<std::string, std::string>> map) {
  change_keys(state, [&](std::string& key) {
    const auto fits = [&](const auto& pair) {
      return key.starts_with(pair.first);
    };
    const auto found = std::ranges::find_if(map, fits);
    if (found != map.end()) key.replace(0, found->first.size(), found->second);
  });
}

void apply_factories(State& state) {
  walk_leaves(state, [](State& leaf) {
    const auto* factory = leaf.as<ShardedTensorFactory>();
    if (factory == nullptr) return;
    const std::string key = factory->key;
    if (!factory->build)
      throw usage_error({{}, key}, "its factory has no function that builds");
    State built = factory->build(factory->key, factory->data, factory->replica,
                                 factory->flattened_range);
    // Left as is, none of it would be saved.
    if (has_factory(built))
      throw usage_error({{}, key}, "its factory builds another factory")
          .with_hint("build the tensors there");
    leaf = std::move(built);
  });
}

State apply_factory_merges(State loaded, const State& factories) {
  return merge_at(std::move(loaded), factories, {});
}

}  // namespace ckpt::mcore
