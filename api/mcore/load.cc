// SPDX-License-Identifier: Apache-2.0
// Fills a sharded state dict from a checkpoint (megatron-core:
// serialization.py, load).
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "api/mcore/tree.h"
#include "api/parallel/messages.h"
#include "api/strictness.h"
#include "formats/format.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/state/common.h"
#include "lib/pickle/whole_json.h"
#include "reshard/ranks/pack.h"

namespace ckpt::mcore {
namespace {

using json = nlohmann::ordered_json;

const std::string* key_of(const State& state) {
  if (const auto* tensor = state.as<ShardedTensor>()) return &tensor->key;
  if (const auto* object = state.as<ShardedObject>()) return &object->key;
  return nullptr;
}

std::set<std::string> keys_of(const State& state) {
  std::set<std::string> keys;
  walk_leaves(state, [&](const State& leaf) {
    if (const std::string* key = key_of(leaf)) keys.insert(*key);
  });
  return keys;
}

// Keys of what is sharded in the checkpoint.
std::set<std::string> keys_of(const Catalog& catalog, bool optimizer) {
  std::set<std::string> keys;
  for (const Tensor& tensor : catalog.tensors)
    if (optimizer || tensor.kind != Kind::optim) keys.insert(tensor.name);
  for (const Object& object : catalog.objects) {
    const auto key = megatron::parse_object_key(object.name);
    if (key)
      keys.insert(std::string(key->key));
    else if (!megatron::is_common(catalog, object))
      keys.insert(object.name);
  }
  return keys;
}

// Drops from dicts and lists the sharded members that are not in the
// checkpoint.
bool drop(State& state, const std::set<std::string>& keys) {
  const Level level;
  if (auto* dict = state.as<Dict>()) {
    for (auto member = dict->begin(); member != dict->end();)
      member =
          drop(member->second, keys) ? dict->erase(member) : std::next(member);
    return false;
  }
  if (auto* list = state.as<List>()) {
    std::erase_if(*list, [&](State& member) { return drop(member, keys); });
    return false;
  }
  const std::string* key = key_of(state);
  return key != nullptr && keys.contains(*key);
}

// Merges the common part into what was loaded: dicts by name, lists of equal
// length member by member. What is sharded, or belongs to this process, stays;
// plain values are the checkpoint's.
void merge_common(State& state, const json& common, const std::string& path) {
  const Level level;
  if (auto* dict = state.as<Dict>(); dict != nullptr && common.is_object()) {
    for (const auto& [name, member] : common.items()) {
      const auto found = dict->find(name);
      if (found == dict->end())
        (*dict)[name] = Json{member.dump()};
      else
        merge_common(found->second, member, fmt::format("{}.{}", path, name));
    }
    return;
  }
  if (auto* list = state.as<List>(); list != nullptr && common.is_array()) {
    if (list->size() != common.size())
      throw unfaithful_error({{}, path},
                             "is a list of {} in the checkpoint, {} are "
                             "requested",
                             common.size(), list->size());
    for (size_t i = 0; i < list->size(); ++i)
      merge_common((*list)[i], common[i], fmt::format("{}.{}", path, i));
    return;
  }
  if (state.as<Json>() == nullptr)
    throw unfaithful_error({{}, path},
                           "is a plain value in the checkpoint, and a {} in "
                           "the request",
                           kind_of(state));
  state = Json{common.dump()};
}

// Runs a step in all processes of a job, or in this one alone.
void together(Communicator* job, const std::function<void()>& step) {
  if (job)
    library::agree(*job, step);
  else
    step();
}

// Adds what the job's other processes ask for.
void add_keys_of_others(Communicator& job, std::set<std::string>& asked) {
  ranks::Packer out;
  out.put(uint64_t{asked.size()});
  for (const std::string& key : asked) out.text(key);
  for (const std::string& given : library::share_all(job, out.take())) {
    ranks::Unpacker in(given);
    for (uint64_t left = in.count(8); left > 0; --left) asked.insert(in.text());
  }
}

class Filler {
 public:
  // `job` is null for a single process.
  Filler(Communicator* job, Catalog& catalog, const LoadOptions& options)
      : job_(job), catalog_(catalog), options_(options) {}

  void fill(State& state) {
    together(job_, [&] {
      walk_leaves(state, [this](State& leaf) { collect(leaf); });
    });
    read_tensors();
    together(job_, [&] { read_objects(); });
  }

 private:
  void collect(State& leaf) {
    if (const auto* tensor = leaf.as<ShardedTensor>()) {
      if (tensor->data == nullptr)
        tensor->validate();
      else
        tensor->without_data().validate();
      requests_.push_back(
          {.name = tensor->key,
           .box = tensor->box(),
           .shape = tensor->global_shape,
           .allow_shape_mismatch = tensor->allow_shape_mismatch});
      tensors_.push_back(&leaf);
    } else if (leaf.as<ShardedObject>() != nullptr) {
      objects_.push_back(&leaf);
    } else if (const auto* own = leaf.as<LocalNonpersistentObject>()) {
      if (const auto* data = std::get_if<TensorPtr>(&own->value)) {
        TensorPtr kept = *data;
        leaf = State(std::move(kept));
      } else {
        leaf = Json{std::get<std::string>(own->value)};
      }
    }
  }

  void read_tensors() {
    LoadOptions exact = options_;
    exact.strict = StrictHandling::kAssumeOkUnexpected;
    LoadResult read = job_ ? load_shards(*job_, catalog_.path, requests_, exact)
                           : load_shards(catalog_.path, requests_, exact);
    together(job_, [&] {
      for (size_t i = 0; i < tensors_.size(); ++i)
        *tensors_[i] = State(local_part(*tensors_[i]->as<ShardedTensor>(),
                                        std::move(*read.tensors[i])));
    });
  }

  // The part without the axes that the process does not have, cut to a flat
  // range.
  TensorPtr local_part(const ShardedTensor& tensor, TensorData data) {
    if (data.dtype != tensor.dtype)
      throw unfaithful_error({catalog_.path, tensor.key},
                             "is {}, requested is {}", name(data.dtype),
                             name(tensor.dtype));
    data.shape = tensor.local_shape;
    if (const auto& range = tensor.flattened_range) {
      const uint64_t element = element_size(data.dtype);
      const auto begin = data.bytes.begin();
      data.bytes = std::vector<std::byte>(
          begin + static_cast<std::ptrdiff_t>(range->begin * element),
          begin + static_cast<std::ptrdiff_t>(range->end * element));
      data.shape = Shape{range->end - range->begin};
    }
    return std::make_shared<TensorData>(std::move(data));
  }

  // An item of a .distcp is a list of the values that one rank saved under one
  // key; here it has one value.
  std::string value_of(const Object& object) const {
    std::string canonical =
        pickle::whole_json(*object.document, object.node, object.name);
    if (object.bytes == 0 ||
        !catalog_.files.at(object.file).path.ends_with(".distcp"))
      return canonical;
    const auto list = json::parse(canonical);
    return list.is_array() && list.size() == 1 ? list[0].dump() : canonical;
  }

  void read_objects() {
    if (objects_.empty()) return;
    std::map<std::string, std::vector<State*>> wanted;
    for (State* leaf : objects_) {
      const ShardedObject& object = *leaf->as<ShardedObject>();
      wanted[object.grid.empty() ? object.key : unique_key(object)].push_back(
          leaf);
    }
    std::erase_if(catalog_.objects, [&](const Object& object) {
      return !wanted.contains(object.name);
    });
    load_objects(catalog_);
    for (const Object& object : catalog_.objects) {
      const std::string value = value_of(object);
      for (State* leaf : wanted[object.name]) *leaf = Json{value};
      wanted.erase(object.name);
    }
    if (wanted.empty()) return;
    throw unfaithful_error({catalog_.path, wanted.begin()->first},
                           "is not in the checkpoint");
  }

  Communicator* const job_;
  Catalog& catalog_;
  const LoadOptions& options_;
  std::vector<LoadRequest> requests_;
  std::vector<State*> tensors_, objects_;
};

Loaded load_with(Communicator* job, State request, const std::string& path,
                 const LoadOptions& options, std::span<const State> others) {
  const State factories = request;
  Catalog catalog;
  std::set<std::string> asked, own;
  together(job, [&] {
    catalog =
        formats::open(path, options.open.format,
                      {.family = options.open.family,
                       .shard_dims_file = options.open.shard_dims_file,
                       .restrict_globals = options.open.restrict_globals});
    apply_factories(request);
    own = asked = keys_of(request);
    for (State other : others) {
      apply_factories(other);
      asked.merge(keys_of(other));
    }
  });
  if (job) add_keys_of_others(*job, asked);
  Loaded loaded;
  json common = json::object();
  together(job, [&] {
    const std::set<std::string> stored = keys_of(catalog, true);
    std::vector<std::string> unexpected, missing;
    for (const std::string& key : own)
      if (!stored.contains(key)) unexpected.push_back(key);
    for (const std::string& key : keys_of(catalog, options.optimizer))
      if (!asked.contains(key)) missing.push_back(key);
    const library::Strictness strictness(options, catalog.path);
    const std::set<std::string> gone(unexpected.begin(), unexpected.end());
    strictness.judge(unexpected, missing);
    loaded.unexpected = std::move(unexpected);
    loaded.missing = std::move(missing);
    drop(request, gone);
    for (const auto& [name, canonical] : load_common(path, options.open))
      common[name] = json::parse(canonical);
  });
  Filler(job, catalog, options).fill(request);
  together(job, [&] {
    merge_common(request, common, {});
    loaded.state = apply_factory_merges(std::move(request), factories);
  });
  return loaded;
}

}  // namespace

Loaded load(State request, const std::string& path, const LoadOptions& options,
            std::span<const State> others) {
  return load_with(nullptr, std::move(request), path, options, others);
}

Loaded load(Communicator& job, State request, const std::string& path,
            const LoadOptions& options) {
  return load_with(&job, std::move(request), path, options, {});
}

}  // namespace ckpt::mcore
