// SPDX-License-Identifier: Apache-2.0
// How a tensor is cut into the chunks of a zarr array: all of one size, with
// none past the edge, since a chunk is what one rank of Megatron writes.
//
//   layer axis, expert axis   1
//   rows, columns             extent / TP
//   gated rows                extent / (2 * TP)
//   replicated                the whole extent
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "formats/megatron/dist/boxes.h"

namespace ckpt::megatron {

// Throws unfaithful_error for tensors that Megatron's zarr backend can't store:
// 0-d and empty ones, dtypes not in its table, names that no directory can
// have.
void check_zarr_tensor(const Tensor& tensor);

// Tensors of unknown sharding keep the source's boxes, if these are such a
// grid; else they are one chunk. (check_split has passed.)
Dims zarr_chunks(const Tensor& tensor, const Key& key, const DistSplit& split);

}  // namespace ckpt::megatron
