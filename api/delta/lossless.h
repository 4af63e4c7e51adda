// SPDX-License-Identifier: Apache-2.0
// A checkpoint as what distinguishes its files from another's tensors: a run's
// next step in a fraction of its bytes. Restored byte for byte.
//
//   a .safetensors file of two tensors of bytes
//     payload   zstd frames, one for each block of a file of B
//     index     zstd frames of a JSON document, which says for each file its
//               path, size, SHA-256 and blocks in order:
//
//   {"bytes": 4194304,         of the file
//    "payload": [0, 81920],    where its frame is
//    "step": 2,                bytes of an element, whose planes are apart
//    "tensor": 0,              of the base, in "tensors": the block is XORed
//    "offset": [0, 0], "shape": [1024, 2048],      with this box of it, whose
//    "digest": "f738…"}                            content has this digest
//
// A block without a tensor is not XORed: headers, pickles, what the base lacks
// or has in another dtype or shape.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/progress.h"

namespace ckpt::library {

struct LosslessOptions {
  uint32_t threads = 0;  // 0: as many as processors
  uint64_t max_mem = uint64_t{1} << 30;
  bool overwrite = false;
  bool sync = true;
  bool dry_run = false;  // look at headers and index alone
};

struct LosslessResult {
  uint64_t files = 0;
  uint64_t tensors = 0;  // of the base that are needed
  uint64_t bytes = 0;    // of the files
  uint64_t xored = 0;    // of those, in blocks that the base is needed for
  uint64_t packed = 0;   // of the delta
  // What was written, or would be: path, bytes. Of a delta that is not written,
  // at most.
  std::vector<std::pair<std::string, uint64_t>> written = {};
};

// Writes at `target` what makes the files of `b` from the tensors of `base`.
// Throws usage_error for a `b` behind a URL.
LosslessResult write_lossless(Catalog base, Catalog b,
                              const std::string& target,
                              const LosslessOptions& options,
                              const Progress& progress);

// True for a file that write_lossless made.
bool is_lossless(const std::string& path);

// What the index of a delta says. Throws input_error for a damaged one.
LosslessResult lossless_contents(const std::string& path);

// Makes the files again: a directory, or one file, as `b` was. Throws
// unfaithful_error naming the tensor if `base` is not what it was, input_error
// if the delta is damaged; then nothing is at `target`.
LosslessResult restore_lossless(Catalog base, const std::string& delta,
                                const std::string& target,
                                const LosslessOptions& options,
                                const Progress& progress);

}  // namespace ckpt::library
