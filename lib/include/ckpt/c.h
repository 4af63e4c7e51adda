// SPDX-License-Identifier: Apache-2.0
/* The library for callers that speak C, or by way of it (Python's ctypes):
 * open a checkpoint, look at its tensors, read parts of them, write tensors
 * that lie in memory.
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

/* Reads headers alone. `format` and `family` may be null: found out. */
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

/* The same checkpoint under the names and in the arrangement of a dialect: hf,
 * mcore, meta, fairseq2 or olmo_core. No byte moves; a handle of its own. */
ckpt_checkpoint* ckpt_in_dialect(const ckpt_checkpoint* checkpoint,
                                 const char* dialect, char** error);

/* Some of its tensors, as --keys, --exclude, --layers and --experts choose them
 * (ckpt/select.h). Lists end with a null; null instead of one, or of a text:
 * no choice. */
typedef struct ckpt_selection {
  const char* const* keys;
  const char* const* exclude;
  const char* layers;  /* "0-3,8" */
  const char* experts; /* likewise */
  int model_only;
  int optim_only;
} ckpt_selection;
ckpt_checkpoint* ckpt_select(const ckpt_checkpoint* checkpoint,
                             const ckpt_selection* selection, char** error);

/* A box of a tensor: `offsets` and `shape` have one number for each of its
 * dimensions; both null: all of it. Reads what the box needs and no more.
 * Elements are row-major, packed, little endian. */
ckpt_data* ckpt_read(const ckpt_checkpoint* checkpoint, const char* name,
                     const uint64_t* offsets, const uint64_t* shape,
                     char** error);
const void* ckpt_data_bytes(const ckpt_data* data, size_t* size);
void ckpt_data_close(ckpt_data* data);

/* The same memory as a DLManagedTensor (DLPack 0.x, on the CPU) of that dtype
 * and shape; its deleter, or ckpt_dlpack_close, releases it. `data` may be
 * closed before. */
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
/* The next shard: its name and shape live until the next call. Null and no
 * error: that was the last. */
ckpt_data* ckpt_shards_next(ckpt_shards* shards, const char** name,
                            const char** dtype, const uint64_t** shape,
                            size_t* dims, char** error);
void ckpt_shards_close(ckpt_shards* shards);

/* Writes whole tensors that lie in memory, beside `path`, and renames the
 * result into place. `format` is that of the target ("safetensors", "dcp").
 * Returns the exit status that the command line would end with. */
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

/* The same in two phases (ckpt/parallel.h). The first copies the arrays, which
 * may change when it returns, and begins to write beside `path`. Then one of
 * two, which both close it: finish() waits and renames the result into place,
 * drop() leaves nothing behind. */
typedef struct ckpt_pending ckpt_pending;
ckpt_pending* ckpt_save_begin(const ckpt_array* arrays, size_t count,
                              const char* path, const char* format,
                              int overwrite, uint64_t max_shard_size,
                              char** error);
/* Not 0: nothing is left to write, so that finish() will not wait long. */
int ckpt_save_written(const ckpt_pending* pending);
int ckpt_save_finish(ckpt_pending* pending, char** error);
void ckpt_save_drop(ckpt_pending* pending);

#ifdef __cplusplus
}
#endif
