// SPDX-License-Identifier: Apache-2.0
// Finds which parameters a checkpoint's gradient buffers hold, and where. The
// files don't say, but what they do say leaves one answer:
//
//   - the number and dtype of each model-parallel rank's buffers
//   - how long each bucket is, to the element
//   - where its stored chunks begin and end (torch_dist: at each parameter)
//   - the objects per_bucket_numel_unpadded
//
// This also shows how layers are spread over pipeline stages: a buffer's length
// grows with every layer.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/buckets/model.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/state/bucket_key.h"
#include "formats/megatron/state/buffers.h"

namespace ckpt::megatron {

struct FittedBuffer {
  GroupId group;
  uint32_t buffer = 0;            // of the group
  std::vector<RankParam> params;  // in module order
  BufferLayout layout;            // slots of params
};

struct Fit {
  std::vector<FittedBuffer> buffers;
  std::string how;  // "transformer_engine layers", for people
};

// The one arrangement that everything agrees with. Throws unfaithful_error,
// saying why none was found, or why several were.
Fit fit_buckets(const Catalog& catalog, const Groups& groups,
                const Facts& facts);

}  // namespace ckpt::megatron
