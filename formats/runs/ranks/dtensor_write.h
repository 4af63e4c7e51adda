// SPDX-License-Identifier: Apache-2.0
// Rank files made from scratch, as verl's FSDP2 saves them: one DTensor per
// parameter, sharded by rows over a one-dimensional mesh.
//
//   W = 1   plain tensors
//   W > 1   DTensor(local rows, DTensorSpec(DeviceMesh("cuda", ("fsdp",)),
//           (Shard(0),)), as torch 2.12 and 2.13 pickle them
//
// Tensors without dimensions (step) are whole in every file. Private to this
// room.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/layout.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

// Makes the value of a rank's file, given each tensor's node.
using MakeRoot = std::function<pickle::Id(pickle::Document&,
                                          const std::vector<pickle::Id>&)>;

// `pattern`: "model_world_size_{W}_rank_{r}.pt". Tensor i of the result is
// source.tensors[of[i]]; those at the same place in the source are tied.
Target lay_out_dtensors(const Catalog& source, const std::vector<size_t>& of,
                        const std::string& pattern, uint32_t ranks,
                        const MakeRoot& make_root);

// Gives one tie to those of the tensors that are at the same place in the
// source; 0 to others.
std::vector<uint32_t> ties_of(const Catalog& source,
                              const std::vector<size_t>& of);

// Rows [begin, end) of a rank: torch.chunk's parts of ceil(rows / ranks), the
// last ones short or empty.
Box rows_of_rank(const Shape& shape, uint64_t dim, uint32_t rank,
                 uint32_t ranks);

}  // namespace ckpt::runs
