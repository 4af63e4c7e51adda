// SPDX-License-Identifier: Apache-2.0
// The zarr backend of Megatron-Core's distributed checkpoints (cores up to
// 0.15).
//
//   metadata.json                the backend; written last
//   common.pt                    what all ranks share
//   <key>/.zarray 0.0 0.1 …      a tensor: one chunk for each rank's box
//   <key>/shard_0.1_2.2.pt …     objects of a grid, each its own archive
//   <key>.sync/.zarray           empty: locks of flattened writes, left over
//
// A key is a directory's name unchanged, with dots, spaces and parentheses.
#pragma once

#include <memory>

#include "formats/format.h"

namespace ckpt::megatron {

// megatron_zarr: zarr_*.cc
std::unique_ptr<formats::Reader> make_zarr_reader();
std::unique_ptr<formats::Writer> make_zarr_writer();

}  // namespace ckpt::megatron
