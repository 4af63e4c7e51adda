// SPDX-License-Identifier: Apache-2.0
/* The library for C, and for languages that call C (Python's ctypes): open a
 * checkpoint, look at its tensors, read parts of them, write tensors that are
 * in memory.
 *
 * A function that can fail returns null or a non-zero status, and sets
 * `*error` to one line of JSON as `ckpt --json` prints it (docs/json.md),
 * which ckpt_free releases. Names and texts are UTF-8, shapes count elements,
 * sizes are bytes. A handle may be used by many threads at once. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckpt_checkpoint ckpt_checkpoint;
typedef struct ckpt_data ckpt_data;

/* "0.1.0" */
const char* ckpt_version(void);

/* Releases what `*error` was set to. */
void ckpt_free(char* text);

/* Reads headers only. `format` or `family` is detected if it is null. */
ckpt_checkpoint* ckpt_open(const char* path, const char* format,
                           const char* family, char** error);
void ckpt_close(ckpt_checkpoint* checkpoint);

const char* ckpt_format(const ckpt_checkpoint* checkpoint);
const char* ckpt_path(const ckpt_checkpoint* checkpoint);

/* config.json of the checkpoint or beside it, as it stands there, also of a
 * URL. `path` is what to call it, and lives as long as the data. Null and no
 * error: there is none. */
ckpt_data* ckpt_config(const ckpt_checkpoint* checkpoint, const char** path,
                       char** error);

/* Tensors, by index from 0. Texts live as long as the handle. */
typedef struct ckpt_tensor {
  const char* name;
  const char* dtype;     /* "bf16" */
  const uint64_t* shape; /* global */
  size_t dims;
  uint32_t bits;  /* of one element */
  int optimizer;  /* 1: optimizer state, 0: of the model */
  uint64_t bytes; /* of the whole tensor */
} ckpt_tensor;
size_t ckpt_tensor_count(const ckpt_checkpoint* checkpoint);
int ckpt_tensor_at(const ckpt_checkpoint* checkpoint, size_t index,
                   ckpt_tensor* tensor);

/* The same checkpoint in a dialect's names and arrangement: hf, mcore, meta,
 * fairseq2 or olmo_core. No byte moves; returns a handle of its own. */
ckpt_checkpoint* ckpt_in_dialect(const ckpt_checkpoint* checkpoint,
                                 const char* dialect, char** error);

/* Some of its tensors, chosen as by --keys, --exclude, --layers and --experts
 * (ckpt/select.h). Lists end with a null. A null list or text makes no
 * choice. */
typedef struct ckpt_selection {
  const char* const* keys;
  const char* const* exclude;
  const char* layers;  /* "0-3,8" */
  const char* experts; /* likewise */
  int model_only;
  int optim_only;
  const char* part; /* a state dict in the file: "ema" */
} ckpt_selection;
ckpt_checkpoint* ckpt_select(const ckpt_checkpoint* checkpoint,
                             const ckpt_selection* selection, char** error);

/* Adapters (ckpt/adapter.h). What the checkpoint's is, as one line of JSON
 * which ckpt_free releases: {"kind": "LORA", "names": "peft", "base": "…",
 * "rank": 8, "alpha": 16.0, "rslora": false, "dora": false, "targets": […],
 * "saved": […]}; a rank or alpha that no file says is null. Null and no error:
 * it is none. */
char* ckpt_adapter(const ckpt_checkpoint* checkpoint, char** error);
/* 1: a base with an adapter in it that is not added. */
int ckpt_has_adapter_inside(const ckpt_checkpoint* checkpoint);

typedef struct ckpt_adapter_use {
  const char* path;
  double weight;
} ckpt_adapter_use;
typedef struct ckpt_adapter_options {
  const double* alpha;     /* null: as the files say */
  int allow_nonfinite;     /* 1: add values that are not finite */
  const char* family;      /* of the base; null: as it says */
  const char* config_from; /* directory with the base's config.json, or null */
} ckpt_adapter_options;
/* The base with adapters added, one after the other; with a count of 0, with
 * the one that is inside. Sums are computed as they are read, from the files of
 * both. `options` may be null. Returns a handle of its own. */
ckpt_checkpoint* ckpt_add_adapters(const ckpt_checkpoint* base,
                                   const ckpt_adapter_use* adapters,
                                   size_t count,
                                   const ckpt_adapter_options* options,
                                   char** error);
/* An adapter of any library under PEFT's names. */
ckpt_checkpoint* ckpt_adapter_as_peft(const ckpt_checkpoint* adapter,
                                      const ckpt_adapter_options* options,
                                      char** error);

/* Reads a box of a tensor, and no more than the box needs. `offsets` and
 * `shape` have one number for each dimension; both null: the whole tensor.
 * Elements are row-major, packed, little endian. */
ckpt_data* ckpt_read(const ckpt_checkpoint* checkpoint, const char* name,
                     const uint64_t* offsets, const uint64_t* shape,
                     char** error);
const void* ckpt_data_bytes(const ckpt_data* data, size_t* size);
void ckpt_data_close(ckpt_data* data);

/* The same memory as a DLManagedTensor (DLPack 0.x, on the CPU) of that dtype
 * and shape; its deleter, or ckpt_dlpack_close, releases it. `data` may be
 * closed first. */
void* ckpt_data_dlpack(const ckpt_data* data, const char* dtype,
                       const uint64_t* shape, size_t dims, char** error);
void ckpt_dlpack_close(void* managed);

/* Sizes of a topology, or a rank's place in it. */
typedef struct ckpt_grid {
  uint32_t tp, pp, dp, ep;
} ckpt_grid;

/* The shards of one rank, tensor by tensor: the layers of its stage and the
 * experts of its group, equal parts along each tensor's tensor-parallel
 * dimension, then rows over data-parallel ranks (Checkpoint::lazy_load). */
typedef struct ckpt_shards ckpt_shards;
ckpt_shards* ckpt_shards_open(const ckpt_checkpoint* checkpoint,
                              const ckpt_grid* topology, const ckpt_grid* rank,
                              char** error);
/* The same for the tensors that a glob of `keys` matches: a list that ends with
 * a null. Stages and experts are those of the whole model. */
ckpt_shards* ckpt_shards_open_some(const ckpt_checkpoint* checkpoint,
                                   const ckpt_grid* topology,
                                   const ckpt_grid* rank,
                                   const char* const* keys, char** error);
/* The next shard; its name and shape live until the next call. Null without an
 * error after the last one. */
ckpt_data* ckpt_shards_next(ckpt_shards* shards, const char** name,
                            const char** dtype, const uint64_t** shape,
                            size_t* dims, char** error);
void ckpt_shards_close(ckpt_shards* shards);

/* Writes whole tensors from memory beside `path`, and renames the result into
 * place. `format` is the target's ("safetensors", "dcp"); if it is null, the
 * ending of `path` says it, and a directory gets safetensors. Returns the exit
 * status that the command line would end with. */
typedef struct ckpt_array {
  const char* name;
  const char* dtype;
  const uint64_t* shape;
  size_t dims;
  const void* bytes;
  uint64_t size;
} ckpt_array;
int ckpt_save(const ckpt_array* arrays, size_t count, const char* path,
              const char* format, int overwrite, uint64_t max_shard_size,
              char** error);

/* What is saved beside the arrays: values by name, as a JSON object (null:
 * none), and the bytes of small files of the target's directory, config.json. A
 * value that the format has no place for is an error. */
typedef struct ckpt_file {
  const char* name;
  const void* bytes;
  size_t size;
} ckpt_file;
typedef struct ckpt_beside {
  const char* values;
  const ckpt_file* files;
  size_t file_count;
} ckpt_beside;
int ckpt_save_with(const ckpt_array* arrays, size_t count,
                   const ckpt_beside* beside, const char* path,
                   const char* format, int overwrite, uint64_t max_shard_size,
                   char** error);

/* The same in two phases (ckpt/parallel.h). The first copies the arrays, which
 * may change once it returns, and begins to write beside `path`. The second is
 * either of two calls, which both close the handle: finish() waits and renames
 * the result into place, drop() leaves nothing behind. */
typedef struct ckpt_pending ckpt_pending;
ckpt_pending* ckpt_save_begin(const ckpt_array* arrays, size_t count,
                              const char* path, const char* format,
                              int overwrite, uint64_t max_shard_size,
                              char** error);
ckpt_pending* ckpt_save_begin_with(const ckpt_array* arrays, size_t count,
                                   const ckpt_beside* beside, const char* path,
                                   const char* format, int overwrite,
                                   uint64_t max_shard_size, char** error);
/* Non-zero if nothing is left to write, so finish() will not wait long. */
int ckpt_save_written(const ckpt_pending* pending);
int ckpt_save_finish(ckpt_pending* pending, char** error);
void ckpt_save_drop(ckpt_pending* pending);

/* Sources as one (ckpt/merge.h), to be read like any other: elements are
 * computed when they are. Options as of ckpt_prune, of ckpt merge: "method",
 * "weights", "ema", "density", "base" (the place of a source), "lambda", "t",
 * "seed", "normalize", "no-normalize", "no-rescale", "exact", "dtype",
 * "allow-nonfinite", "with-optimizer". */
ckpt_checkpoint* ckpt_merge(const ckpt_checkpoint* const* sources, size_t count,
                            const char* options, char** error);

/* What B is more than A, as files (ckpt/delta.h). Options as of ckpt_prune:
 * "as-lora": rank, "lossless", "dtype", "overwrite", "dry-run", "no-fsync" ->
 *   {"written": [{"path", "bytes"}], "tensors", "modules": [{"name", "rank",
 *    "norm", "error": share of it that is left}], "saved": [modules],
 *    "notes": [texts]} */
char* ckpt_write_delta(const ckpt_checkpoint* a, const ckpt_checkpoint* b,
                       const char* target, const char* options, char** error);

/* The steps of a run (ckpt/keep.h). `options` is a JSON object, or null: the
 * long options of the command, without dashes and with its meanings, as true,
 * a number, a text or a list of texts. Times are seconds. Other names, and
 * values of another type, are errors. Returns a JSON object which ckpt_free
 * releases; with less in it than the command's document has.
 *
 * ckpt prune: {"keep-last": 3, "keep-every": 5000, "keep-best": "eval_loss",
 * "delete": true, "dry-run", "from", "trainer"} ->
 *   {"deleted": true, "bytes": 1, "unfinished": [paths], "steps": [{"name",
 *    "step": number or null, "bytes", "complete", "fate": "stays", "goes" or
 *    "deleted", "why": [texts]}]} */
char* ckpt_prune(const char* root, const char* options, char** error);

/* ckpt edit: {"set": ["license=mit"], "unset": ["author"], "dry-run", "from",
 * "no-fsync"} ->
 *   {"step": of a run's folder which, or null, "files": [{"path", "bytes",
 *    "changes": [{"key", "before", "after": text or null}]}], "written":
 *    [{"path", "bytes"}], "notes": [texts]} */
char* ckpt_edit(const char* path, const char* options, char** error);

/* ckpt sync: {"include": [globs], "exclude": [globs], "delete-extra",
 * "dry-run", "no-fsync"} ->
 *   {"complete": false if content is left out, "bytes", "bytes_differ",
 *    "files": [{"path", "bytes", "fate": as of the command, "why": text or
 *    null}], "notes": [texts]} */
char* ckpt_sync(const char* source, const char* target, const char* options,
                char** error);

/* ckpt watch --once: {"do": "convert.sh {step}", or its words as a list,
 * "deep", "tries", "interval", "settle", "state", "from", "trainer",
 * "dry-run"} ->
 *   {"steps": [{"name", "step": number or null, "result": "done" and the like,
 *    "status", "tries", "seconds", "why": text or null, "command": [words]}],
 *    "notes": [texts]}
 * A command that failed is no error. */
char* ckpt_watch_once(const char* root, const char* options, char** error);

#ifdef __cplusplus
}
#endif
