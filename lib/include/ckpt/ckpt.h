// SPDX-License-Identifier: Apache-2.0
// The library: open a checkpoint, read parts of it, cut shards for a rank,
// write it for another topology or in another format. See also sharded.h
// (saves and loads of many ranks) and trees.h (values that are not tensors).
//
//   ckpt::Checkpoint source = ckpt::open("step_5000");
//   ckpt::TensorData rows = source.read("final_proj.weight",
//                                       {{0, 0}, {128, 4096}});
//   ckpt::Layout layout{.format = "fairseq2", .topology = {.tp = 8}};
//   ckpt::run(source.catalog(), layout, "step_5000_tp8");
//
// Every function throws ckpt::Error (error.h). Nothing prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "ckpt/layout.h"
#include "ckpt/read_mode.h"

namespace ckpt {

// Elements in memory: row-major, packed, little endian.
struct TensorData {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;
};

// The coordinates of one process in a topology, each from zero.
struct Rank {
  uint32_t tp = 0;
  uint32_t pp = 0;
  uint32_t dp = 0;
  uint32_t ep = 0;
};

struct OpenOptions {
  std::string format;           // "": detected from the content
  std::string family;           // overrides what the files say
  std::string shard_dims_file;  // JSON of GLOB: dim
  bool restrict_globals = false;
};

// The shards of one rank, tensor by tensor: the loop of a loader.
//
//   auto shards = source.lazy_load({.tp = 4}, {.tp = 1});
//   while (auto shard = shards.next()) use(shard->first, shard->second);
class LazyLoad {
 public:
  // The next tensor's name and this rank's part of it. Reads only that part. A
  // rank without rows gets shape (0, d1, …).
  std::optional<std::pair<std::string, TensorData>> next();

 private:
  friend class Checkpoint;
  LazyLoad(std::shared_ptr<const Catalog> catalog, Topology topology,
           Rank rank);
  std::shared_ptr<const Catalog> catalog_;
  Topology topology_;
  Rank rank_;
  size_t next_ = 0;
};

// An open checkpoint: its headers have been read, its payload has not. Copies
// share the catalog; every function may be called from many threads.
class Checkpoint {
 public:
  explicit Checkpoint(Catalog catalog);

  const Catalog& catalog() const { return *catalog_; }

  // A whole tensor, or a box of it in elements of its global shape. Reads
  // only what is needed. Throws usage_error for an unknown name or a
  // box outside the tensor, unfaithful_error if pieces of it are missing.
  TensorData read(const std::string& name) const;
  TensorData read(const std::string& name, const Box& box) const;

  // The shards of `rank` of `topology`, under the names that the catalog has.
  //
  //   pp  stage p has layers [p * L / pp, (p + 1) * L / pp), as Megatron has
  //       it, an encoder's before a decoder's; embeddings and towers are on
  //       the first stage, final norm, output layer and MTP on the last;
  //       tokens' embeddings there too if there is no output layer
  //   ep  equal runs of experts, numbered as in the whole model; of tensors
  //       that stack layers or experts, this rank's rows
  //   tp  equal parts along the tensor's tensor-parallel dimension, of experts
  //       too: Tensor::tp where it is known (shard_dims_file), else as the
  //       dialect has it (transformers' plans, Megatron's modules, …)
  //   dp  rows of ceil(rows / dp), as fairseq2 and FSDP have them; buffers and
  //       replicated tensors whole
  //
  // Other names: into_dialect() first. Some tensors only: their names' globs in
  // `keys`, as in Selection; stages and experts are those of the whole model.
  // (After select() they are those of what remains.) Throws unfaithful_error,
  // naming the tensor, if a dimension does not divide, a rank would get part of
  // a head, no rule says how it is split, or nothing in the model has a key.
  LazyLoad lazy_load(const Topology& topology, const Rank& rank,
                     const std::vector<std::string>& keys = {}) const;

 private:
  std::shared_ptr<const Catalog> catalog_;
};

// Reads headers only. Throws missing_error for a path that does not exist or
// is not a checkpoint, input_error for a damaged one.
Checkpoint open(const std::string& path, const OpenOptions& options = {});

// One tensor from the shards of one topology to the shard of one rank of
// another, in memory. `shards` has source.tp * source.dp members, tensor
// parallel rank by rank: shards[t * source.dp + d]; each is what that rank
// holds. Shards of data-parallel ranks are joined along dimension 0, then
// those of tensor-parallel ranks along rule.dim; of a replicated tensor (rule
// not kSplit) tensor-parallel rank 0 is taken and the others must be equal to
// it. Unlike fairseq2's function of that name, a dimension that target.tp
// does not divide is an unfaithful_error, not a loss of rows.
TensorData reshard_tensor(std::span<const TensorData> shards,
                          const Topology& source, const Topology& target,
                          const Rank& rank, const TpRule& rule);

// What becomes of finite values that a cast's target is too small for.
enum class Overflow : uint8_t {
  kRefuse,    // nothing is written; the error names tensors and numbers
  kSaturate,  // the largest number of the type
  kInf,       // an infinity, as PyTorch has it
};

// The names that tensors have in the target, and what a conversion between
// dialects needs to know (docs/families.md).
struct Naming {
  // hf, mcore, meta, fairseq2, olmo_core; "": the one of the target's format,
  // the source's where that takes any; "keep": the source's in any case.
  std::string dialect;
  std::string family;       // "": as the source says
  std::string family_file;  // rules of a family that ckpt does not know
  std::string config_from;  // directory with the model's config.json
  std::map<std::string, std::string> set;  // numbers of the model: {"nh", "32"}
  uint64_t vocab_size = 0;  // rows of the vocabulary that are in use; 0: all
  // Whether the output layer is the embedding, in a model with transformers'
  // names; none: as the source says.
  std::optional<bool> tied = {};
  std::vector<std::string> drop;  // globs: tensors that may be left out,
  std::vector<std::string> allow_missing;  // or may be missing,
  std::vector<std::string> allow_unsaid;   // and facts that may be left unsaid
  bool strict_config = false;  // refuse keys of config.json that are not known
  // Names were given one by one: no prefix is taken off them for a container.
  bool renamed = false;
  bool partial = false;  // tensors were left out before: others may be missing
  // A folder of transformers' weights gets Megatron's optimizer, too.
  bool with_optimizer = false;
  std::optional<DType> dtype;  // what config.json will say
  // Which of transformers' two ways the names are: hub (as save_pretrained
  // writes them; also transformers4) or transformers5 (its modules', experts
  // stacked); "": the source's.
  std::string names;
  // For a GGUF target: a folder with a tokenizer, or a GGUF file with one;
  // "none": it gets no tokenizer; "": the source's.
  std::string tokenizer_from = {};
  // Called with what was found and assumed on the way, and what can't be done.
  std::function<void(const std::vector<Problem>& problems)> note = {};
};

struct SaveOptions {
  uint32_t threads = 0;                  // 0: as many as processors
  uint64_t max_mem = uint64_t{1} << 30;  // bound of all buffers, bytes
  bool overwrite = false;                // replace the target when done
  bool resume = false;                   // continue an interrupted run
  bool trust_staging = false;            // without reading back what it wrote
  bool sync = true;                      // wait for the disk
  bool manifest = true;                  // write .ckpt-manifest.json
  bool allow_replica_mismatch = false;
  // Copy bytes of the source whose stored checksum, or digest in its
  // manifest, is wrong.
  bool ignore_checksums = false;
  std::optional<DType> dtype;  // cast floating-point model tensors to it
  Overflow overflow = Overflow::kRefuse;
  // Write even values and sidecars that would run code when they are loaded
  // (docs/reliability.md).
  bool keep_unknown_globals = false;
  bool cuda = false;  // slice, permute and cast on a GPU
  ReadMode io = ReadMode::kAuto;
  // Progress in payload bytes, from any thread.
  std::function<void(uint64_t done, uint64_t total)> progress;
  // Called with what the user should know, one sentence at a time.
  std::function<void(const std::string& line)> note = {};
  // plan() and run() convert a source whose names are not those of the target's
  // format. save() keeps the names that it is given.
  Naming naming = {};
};

// What a run would do.
struct Preview {
  Target target;
  uint64_t bytes_read = 0;     // payload
  uint64_t bytes_written = 0;  // whole files
  uint64_t peak_memory = 0;    // buffers, catalogs and plan, bytes
};

// The source under the names, and with the configuration, that `format` has. No
// byte moves: tensors are made of the source's pieces. Throws unfaithful_error,
// naming tensor, fact or number, for what the target can't hold.
Catalog into_dialect(Catalog source, const std::string& format,
                     const Naming& naming = {});

// Lays the target out and proves that every byte has one source; writes
// nothing. `path` names the target only.
Preview plan(const Catalog& source, Layout layout, const std::string& path,
             const SaveOptions& options = {});

// plan, then write beside `path` and rename into place. The source is never
// changed; on failure the target is as it was before.
Preview run(const Catalog& source, Layout layout, const std::string& path,
            const SaveOptions& options = {});

// A tensor's shard as one process holds it: a box of the global tensor.
struct ShardedTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;                       // global
  Box box;                           // of the global tensor
  std::span<const std::byte> bytes;  // the box, row-major
  TpRule tp;
  // Which copy of the box this is: all zeros, or none, for the main one. For
  // Saver (sharded.h); save() takes the first of equal boxes.
  std::vector<uint64_t> replica;
};

// Writes tensors that are in memory. Shards of one name must have one dtype and
// global shape and cover it exactly; equal boxes are replicas and must hold
// equal bytes. The bytes must stay valid until it returns.
Preview save(std::span<const ShardedTensor> shards, Layout layout,
             const std::string& path, const SaveOptions& options = {});

// The same in a thread of its own; the bytes must stay valid until the future
// is ready. get() throws errors.
std::future<Preview> save_async(std::vector<ShardedTensor> shards,
                                Layout layout, std::string path,
                                SaveOptions options = {});

// --- a checkpoint as a whole ---

struct TensorMetadata {
  DType dtype = DType::f32;
  Shape shape;  // global
  Kind kind = Kind::model;
};

// Names, dtypes and global shapes; reads headers only.
std::map<std::string, TensorMetadata> load_tensors_metadata(
    const std::string& path, const OpenOptions& options = {});

// All tensors, whole, in memory: for checkpoints that fit. Optimizer state is
// left out unless asked for.
std::map<std::string, TensorData> load_plain_tensors(
    const std::string& path, bool optimizer = false,
    const OpenOptions& options = {});

// Is every element of every tensor stored exactly once, apart from replicas?
// Does every piece lie inside a file that exists and is long enough, and are
// the grids of objects complete? (megatron-core: validate_sharding_integrity.)
// With `deep` all bytes are read: replicas must be equal and stored checksums
// right. Empty: yes. Other problems that the reader found are not repeated.
std::vector<Problem> validate_sharding_integrity(const Catalog& catalog,
                                                 bool deep = false);

// Renames tensors: the first prefix that matches is replaced, as megatron-core
// does it ("model." and "model" are two prefixes). Optimizer state follows its
// parameter. Throws unfaithful_error if two tensors would get one name.
void apply_prefix_mapping(
    Catalog& catalog,
    const std::vector<std::pair<std::string, std::string>>& prefixes);

// Replaces a prefix that every tensor's name must have (megatron-core:
// replace_prefix_for_sharding). Throws usage_error naming one that lacks it.
void replace_prefix(Catalog& catalog, const std::string& prefix,
                    const std::string& replacement);

// Renames tensors by any function from the old name to the new one, with the
// same checks.
void rename_tensors(
    Catalog& catalog,
    const std::function<std::string(const std::string&)>& rename);

// A value that is not a tensor and differs, by its dotted name.
struct ObjectDifference {
  std::string name;
  std::string left;      // canonical JSON; "" if only the right side has it
  std::string right;     // likewise
  std::string why = {};  // if these are the same: what differs inside
};
std::vector<ObjectDifference> diff_objects(const Catalog& left,
                                           const Catalog& right);

// The tensors and objects of both, as one catalog. Throws unfaithful_error for
// a tensor name that both have, or an object that both have with different
// values. The nesting of torch files is not kept.
Catalog merge(const Catalog& left, const Catalog& right);

}  // namespace ckpt
