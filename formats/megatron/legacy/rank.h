// SPDX-License-Identifier: Apache-2.0
// One rank's files of a legacy Megatron checkpoint, opened: the content of its
// state dicts under the rank's own names.
//
//   model_optim_rng.pt   {args, checkpoint_version, iteration,
//                         model | model0, model1 …, optimizer, rng_state, …}
//   distrib_optim.pt     {buckets_coalesced, 0: {(dtype, dtype): {param, …}}}
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "containers/torch/container.h"
#include "containers/torch/tensors.h"
#include "formats/format.h"
#include "formats/megatron/legacy/scan.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// Elements in a rank's file.
struct LocalTensor {
  DType dtype = DType::f32;
  Shape shape;
  Extent extent;  // strides empty if row-major contiguous
  uint8_t transform = kNoTransform;
};
LocalTensor local_tensor(const torch::TensorRef& ref);

// An entry of a state dict.
struct LegacyEntry {
  std::vector<std::string> path;  // keys: "language_model", "encoder", …
  std::string name;               // joined with dots
  pickle::Id node = pickle::kNoId;
  std::optional<LocalTensor> tensor;  // nothing: _extra_state and the like
};

// A state dict: the part of the model in one virtual pipeline stage.
using LegacyChunk = std::vector<LegacyEntry>;

struct LegacyRank {
  LegacyDir dir;
  torch::Container file;
  Facts facts;
  double version = 0;  // checkpoint_version
  std::optional<int64_t> iteration;
  std::vector<LegacyChunk> chunks;

  const pickle::Document& document() const { return *file.document; }
  // A top-level value; kNoId if absent.
  pickle::Id find(std::string_view key) const {
    return document().find(document().root(), key);
  }
};

// Throws input_error for any other file. `file`: dir.model_file, opened.
LegacyRank read_legacy_rank(const LegacyDir& dir, torch::Container file);
LegacyRank read_legacy_rank(const LegacyDir& dir, Catalog& catalog,
                            const formats::ReadOptions& options);

// True for "model", "model0", "model1" …
bool is_model_key(std::string_view key);

}  // namespace ckpt::megatron
