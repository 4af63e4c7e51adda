// SPDX-License-Identifier: Apache-2.0
// Model files: one flat dict of tensors per rank.
//
//   sdp_00.pt   {"decoder.layers.0.ffn.inner_proj.weight": tensor, …}
//   model.0.pt  {"model": {…}, "model_key": "model", "fs2": True}   (0.3, 0.4)
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/fairseq2/parts.h"
#include "formats/fairseq2/scan.h"
#include "formats/format.h"
#include "models/rules.h"

namespace ckpt::fairseq2 {

// One key of a pipeline stage: every rank's part, sorted by tp, then dp.
struct Key {
  std::string name;
  std::vector<Part> parts;
  uint32_t storage = 0;  // in the first rank's file: equal means shared
  bool requires_grad = false;
};

struct Stage {
  std::vector<Key> keys;  // in the first file's order
};

// Reads the files of all stages, many at a time, and calls `take` with each
// stage as soon as its files are read. Throws input_error for values that are
// not tensors, and for keys that others have but sdp_00 or tp_00 lacks.
void read_stages(const Grid& grid, bool old, Catalog& catalog,
                 const formats::ReadOptions& options,
                 const std::function<void(uint32_t, Stage)>& take);

// True if every data-parallel rank has the key whole, as a buffer. Without a
// family's rules, 0-d tensors, integer tensors and the usual names are buffers;
// equal parts alone prove nothing.
bool is_buffer(const Key& key, const families::Rules& rules);

// The parts of tensor-parallel rank `tp`.
std::vector<const Part*> parts_of(const Key& key, uint32_t tp);

// Joins a stage's keys into catalog.tensors, freeing their parts on the way. A
// key that an earlier stage also has gets its pieces as replicas.
void add_stage(Stage& stage, const families::Rules& rules, Catalog& catalog);

}  // namespace ckpt::fairseq2
