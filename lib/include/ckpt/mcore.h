// SPDX-License-Identifier: Apache-2.0
// Megatron-Core's sharded state dicts, for jobs that are not written in Python:
// what one process holds of global tensors, saved and loaded as megatron-core's
// dist_checkpointing does, under its names and rules (those of 0.16.1, unless a
// comment says otherwise; tests check each against it).
//
//   using namespace ckpt::mcore;
//   Dict state;
//   state["w"] = from_rank_offsets("decoder.w", data, {{0, rank, ranks}});
//   state["iteration"] = Json{"7"};
//   saver.save(rank, rank_state(state));          // sharded.h: Saver
//
//   Loaded back = load(state, "iter_0000007");    // state["w"] is a tensor
//
// Shapes and offsets count elements, grids of objects count objects. Every
// function throws ckpt::Error: usage_error, naming the key, for input that
// contradicts itself; unfaithful_error for what the checkpoint does not have.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ckpt/parallel.h"
#include "ckpt/sharded.h"

namespace ckpt::mcore {

// A tensor of this process. Shared, since a parameter is recognised by its
// pointer.
using TensorPtr = std::shared_ptr<TensorData>;

// Which copy of the same part this is. The main one, which is written, has all
// zeros or no numbers at all.
using ReplicaId = std::vector<uint64_t>;
bool is_main_replica(const ReplicaId& replica);

// Part `index` of `count` equal parts along an axis of the global tensor.
struct RankOffset {
  uint64_t axis = 0;
  uint64_t index = 0;
  uint64_t count = 1;
};

// What this process holds of a global tensor.
//
//   global shape    | layer | rows  | columns |
//   prepended axes  |   1   |                    the process has one layer
//   local shape             | rows/2 | columns |  and half of its rows
struct ShardedTensor {
  std::string key;
  TensorPtr data;  // null: to be loaded, or only checked
  DType dtype = DType::f32;
  Shape local_shape;
  Shape global_shape;
  Dims global_offset;  // elements, one for each axis of the global shape
  // The number of parts along each axis; nullopt: boxes of any size (0.15 on).
  std::optional<Dims> axis_fragmentations;
  ReplicaId replica;
  uint32_t prepended_axes = 0;
  bool allow_shape_mismatch = false;  // when loaded: a padded vocabulary
  // `data` is this run of the local tensor's elements, in one dimension. Cores
  // up to 0.15 save such parts; later ones refuse to, and so does rank_state().
  // They can be loaded.
  std::optional<FlatRange> flattened_range;

  // Throws if the members contradict each other.
  void validate() const;
  Box box() const;  // of the global tensor
  // Its place in the grid of parts: local_chunk_offset_in_global.
  Dims chunk_offset() const;
  // Elements of a part along each axis; axes must divide evenly, unless the
  // shape may differ.
  Dims max_allowed_chunks() const;
  // A range of the local tensor along one of its axes, the same on every
  // process: global shape and offset shrink with it. Returns one tensor. A
  // flattened tensor can be narrowed along axis 0 only, and gives none if the
  // range misses it.
  std::vector<ShardedTensor> narrow(size_t axis, uint64_t start,
                                    uint64_t length) const;
  ShardedTensor without_data() const;
  void init_data();  // zeros, if there is no data
};

struct ShardedOptions {
  ReplicaId replica = {};
  uint32_t prepended_axes = 0;
  bool allow_shape_mismatch = false;
};

// Axes without an offset are whole; of two offsets for one axis the later one
// counts. Prepended axes come first and are 1 in this process.
ShardedTensor from_rank_offsets(std::string key, TensorPtr data,
                                const std::vector<RankOffset>& offsets,
                                const ShardedOptions& options = {});

// `data` is a run of elements of a tensor of that local shape (cores up to
// 0.15).
ShardedTensor from_rank_offsets_flat(std::string key, TensorPtr data,
                                     const Shape& local_shape, FlatRange range,
                                     const std::vector<RankOffset>& offsets,
                                     const ShardedOptions& options = {});

// "rng_state/shard_0.1_2.2", the name under which an object is stored, and the
// object (without a value) that such a name denotes.
std::string unique_key(const ShardedObject& object);
ShardedObject empty_from_unique_key(const std::string& name,
                                    ReplicaId replica = {});

// A value of this process that is not stored: a load leaves it unchanged.
struct LocalNonpersistentObject {
  std::variant<std::string, TensorPtr> value;  // JSON, or a tensor
};

// A value that all processes share, as JSON; canonical JSON after a load
// (trees.h). Rank 0's copy is stored.
struct Json {
  std::string text;
};

struct State;
using Dict = std::map<std::string, State>;
using List = std::vector<State>;

// One tensor that is stored as several: `build` splits it, `merge` puts it back
// together. A parameter's optimizer state goes through the same two functions,
// so they may depend on nothing but their arguments.
struct ShardedTensorFactory {
  using Build = std::function<State(
      const std::string& key, const TensorPtr& data, const ReplicaId& replica,
      const std::optional<FlatRange>& range)>;
  using Merge = std::function<TensorPtr(const State& loaded)>;

  std::string key;
  TensorPtr data;
  Build build;
  Merge merge;
  ReplicaId replica = {};
  std::optional<FlatRange> flattened_range = {};
};

// A sharded state dict, or a part of one. A load replaces a ShardedTensor by a
// TensorPtr. Copies of one that nests more than 200 levels deep, and functions
// that walk over it, throw usage_error.
struct State {
  using Value =
      std::variant<Json, TensorPtr, ShardedTensor, ShardedObject,
                   ShardedTensorFactory, LocalNonpersistentObject, Dict, List>;
  Value value;

  State() = default;
  State(const State& other);
  State(State&& other) noexcept;
  State& operator=(const State& other);
  State& operator=(State&& other) noexcept;
  ~State();
  // NOLINTBEGIN(bugprone-forwarding-reference-overload): it takes no State
  template <typename T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, State> &&
           std::is_constructible_v<Value, T>) State(T&& one)
      : value(std::forward<T>(one)) {}
  // NOLINTEND(bugprone-forwarding-reference-overload)

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  template <typename T>
  T* as() {
    return std::get_if<T>(&value);
  }
  // Returns a member of a dict. Throws usage_error if there is none.
  const State& at(const std::string& name) const;
};

// --- keys ---

// Adds `prefix` to the key of everything sharded.
void add_prefix_for_sharding(State& state, const std::string& prefix);
// Throws usage_error naming a key that does not begin with `from`.
void replace_prefix_for_sharding(State& state, const std::string& from,
                                 const std::string& to);
// Applies the first pair (from, to) that matches; other keys stay.
void apply_prefix_mapping(
    State& state, std::span<const std::pair<std::string, std::string>> map);

// --- factories ---

// Replaces factories by what they build.
void apply_factories(State& state);
// Replaces what was loaded for the factories in `factories` by what they merge
// it into. `factories` may lack parts of `loaded`, but not the other way round.
State apply_factory_merges(State loaded, const State& factories);

// --- the optimizer ---

using ShardedParam = std::variant<ShardedTensor, ShardedTensorFactory>;

// The optimizer numbers its parameters in its own order. Returns what each of
// them is in the model's state, found by its data. Model parameters that the
// optimizer does not have are left out; for one that it has twice, the first
// number counts.
std::map<uint64_t, ShardedParam> get_param_id_to_sharded_param_map(
    const State& model, std::span<const TensorPtr> optimizer_params);

// Returns PREFIX.KEY, cut like the parameter, with the dtype of `data`. Throws
// usage_error if the shapes differ.
ShardedParam make_sharded_optimizer_tensor(const ShardedParam& param,
                                           TensorPtr data,
                                           const std::string& prefix);

// torch's state dict of an optimizer.
struct OptimizerState {
  std::map<uint64_t, std::map<std::string, TensorPtr>> state;  // by number
  // Each group's options, a JSON object, and the parameter numbers in it.
  std::vector<std::pair<std::string, std::vector<uint64_t>>> groups;
};

// {"state": {"0": {"exp_avg": …}}, "param_groups": [{…, "params": kept here}]}
// under the keys optimizer.state.<state>.<parameter>. Throws usage_error for a
// number that is missing from the map.
State optim_state_to_sharding_state(
    const OptimizerState& optimizer,
    const std::map<uint64_t, ShardedParam>& params,
    std::span<const std::string> exclude = {});

// --- saving and loading ---

// Makes the input of Saver (sharded.h): factories are built, values of this
// process are left out, plain values become the common part. Throws usage_error
// for a tensor that is not sharded, unfaithful_error for a flattened range.
RankState rank_state(const State& state);

struct Loaded {
  State state;
  std::vector<std::string> unexpected;  // sorted keys, as options.strict asks
  std::vector<std::string> missing;     // likewise
};

// Reads what `request` asks for and nothing else: parts of tensors, objects by
// key, the common part. Values of this process are put back. A plain value of
// the request is replaced by the checkpoint's; those that only the checkpoint
// has are added. `others` are the requests of other processes: what they ask
// for does not count as missing.
Loaded load(State request, const std::string& path,
            const LoadOptions& options = {},
            std::span<const State> others = {});

// The same for all processes of a job (parallel.h), each with its own request:
// a part that several ask for is read by one and sent to the others.
// Collective.
Loaded load(Communicator& job, State request, const std::string& path,
            const LoadOptions& options = {});

}  // namespace ckpt::mcore
