// SPDX-License-Identifier: Apache-2.0
// Orbax's checkpoints of a JAX tree, one zarr array per leaf.
//
//   _METADATA                     JSON: the tree, and what each leaf is
//   params.dense.kernel/.zarray   a leaf by its keys, joined with dots
//   params.dense.kernel/0.0 …     a chunk for each shard
//   _strings.json                 leaves that are text
//
//   STEP/default/_METADATA        of a CheckpointManager: the newest is taken
//
// Only zarr 2 in directories (use_ocdbt=False, use_zarr3=False). An OCDBT
// database, which Orbax writes by default, is not read.
#pragma once

#include <memory>
#include <string_view>

#include "formats/format.h"

namespace ckpt::orbax {

inline constexpr std::string_view kFormat = "orbax";

std::unique_ptr<formats::Reader> make_reader();

}  // namespace ckpt::orbax
