// SPDX-License-Identifier: Apache-2.0
// Checkpoints of many ranks, as megatron-core's dist_checkpointing and torch's
// DCP see them: names ("keys") of global tensors, the boxes of them that ranks
// hold, objects on grids of ranks, and a common part that no rank owns.
//
//   auto all = ckpt::load_sharded_metadata("iter_0000007");
//   ckpt::remove_sharded_tensors("iter_0000007", "optimizer.");
//
//   ckpt::Saver saver(4, {.format = "dcp"}, "step_1");  // four ranks
//   // each rank, in a thread of its own:
//   saver.save(rank, shards);
//
// Every function throws ckpt::Error (error.h). Nothing prints.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/ckpt.h"

namespace ckpt {

// --- what a checkpoint holds ---

// The common part (megatron-core: load_common_state_dict), which rank 0 wrote
// for all: args, iteration, schedulers. By name, as canonical JSON (trees.h:
// to_json). Of a format without grids of ranks (dcp, torch): all objects.
std::map<std::string, std::string> load_common(const std::string& path,
                                               const OpenOptions& options = {});

// An object that some rank owns: entry `at` of a grid of that many objects.
struct ShardedObjectMetadata {
  std::string key;
  Dims at;
  Dims grid;  // empty: it is alone
};

// What load_tensors_metadata gives, and the sharded objects by their unique
// keys ("rng_state/shard_0.1_2.2"). The common part is not among them. Reads
// headers only.
struct ShardedMetadata {
  std::map<std::string, TensorMetadata> tensors;
  std::map<std::string, ShardedObjectMetadata> objects;
};
ShardedMetadata load_sharded_metadata(const std::string& path,
                                      const OpenOptions& options = {});

// --- loading what a job asks for ---

// How to treat names that a job and a checkpoint don't share. The
// direction is megatron-core's: "unexpected" was requested and is not in the
// checkpoint, "missing" is in it and was not requested.
enum class StrictHandling : uint8_t {
  kAssumeOkUnexpected,  // no check; reading an unexpected name throws
  kLogUnexpected,       // reported through LoadOptions::log, and left out
  kLogAll,
  kRaiseUnexpected,  // unfaithful_error that lists them
  kRaiseAll,
  kReturnUnexpected,  // left out, and listed in the result
  kReturnAll,
  kIgnoreAll,
};

// "raise_all" and so on; throws usage_error for any other word.
StrictHandling parse_strict(std::string_view word);

struct LoadRequest {
  std::string name;
  std::optional<Box> box;  // of the global tensor; none: the whole
  // The global shape that the job has; none: whatever is stored. If the stored
  // shape is another, that is an unfaithful_error, unless it may differ: then
  // everything beyond the stored shape is zero (padded vocabularies).
  std::optional<Shape> shape;
  bool allow_shape_mismatch = false;
};

struct LoadOptions {
  OpenOptions open;
  StrictHandling strict = StrictHandling::kAssumeOkUnexpected;
  std::function<void(const std::string& line)> log;
  bool optimizer = true;  // does its state count as missing?
};

struct LoadResult {
  // In the order of the requests; none for what is unexpected and left out.
  std::vector<std::optional<TensorData>> tensors;
  std::vector<std::string> unexpected;  // sorted; as `strict` asks
  std::vector<std::string> missing;     // likewise
};

// Reads the requested boxes and nothing else.
LoadResult load_shards(const std::string& path,
                       std::span<const LoadRequest> requests,
                       const LoadOptions& options = {});

// --- changing one in place ---

struct RemovedTensors {
  std::vector<std::string> tensors;
  std::vector<std::string> objects;
  std::vector<std::string> files;  // that nothing else refers to
  uint64_t freed = 0;              // bytes of the files
  uint64_t kept = 0;  // bytes of removed items in files that others need
};

// Takes all tensors and objects whose name begins with `prefix` out of a dcp
// or megatron_torch_dist directory: rewrites .metadata (through .metadata.tmp;
// the old one is .metadata.bck until all is done) and deletes the data files
// that no remaining item refers to. Unlike megatron-core's function of this
// name it does not look at the names of the files, and keeps version,
// storage_meta and mcore_data; the writers' plans, which describe what is gone,
// are removed. Manifests (integrity.json, ckpt's own) follow. With `dry_run`
// nothing changes. Throws usage_error if no name or every name begins so.
RemovedTensors remove_sharded_tensors(const std::string& directory,
                                      const std::string& prefix,
                                      bool dry_run = false);

// --- saving from many ranks ---

// An object of a rank. On a grid its name becomes KEY/shard_AT_GRID, in formats
// without grids KEY.AT.
struct ShardedObject {
  std::string key;
  std::string json;  // its value
  Dims at;
  Dims grid;                      // empty: it is alone
  std::vector<uint64_t> replica;  // as ShardedTensor::replica
};

// What one rank saves.
struct RankState {
  std::vector<ShardedTensor> tensors;  // valid until all is written
  std::vector<ShardedObject> objects;
  std::string common;  // a JSON object; only rank 0's is stored
  // Small files of the target by name: config.json. Only rank 0's are stored.
  std::map<std::string, std::string> files = {};
  std::shared_ptr<const void> owner = nullptr;  // of the bytes, if anybody is
};

// A save that all ranks take part in; threads stand for ranks. The last rank
// to call starts the work. Only main replicas are written (replica: all zeros,
// or none), and megatron-core's checks apply: main replicas cover each tensor,
// every box has one, the other replicas of a box equal it, and grids of objects
// are complete. Otherwise every rank gets an unfaithful_error.
// layout.topology says how many files there are, not the number of ranks. An
// object or common value that the format has no place for is an
// unfaithful_error, too, unless options.note is set: then it is left out, and
// note is told.
class Saver {
 public:
  Saver(uint32_t ranks, Layout layout, std::string path,
        SaveOptions options = {});
  ~Saver();  // waits for a save that was started

  // Called once for each rank, from any thread. Returns at once; the future
  // is ready, for all ranks, when everything is written or has failed. Throws
  // usage_error for a rank that does not exist or has called before.
  std::shared_future<Preview> save_async(uint32_t rank, RankState state);
  // The same, but waits for all ranks.
  void save(uint32_t rank, RankState state);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ckpt
