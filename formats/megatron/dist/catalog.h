// SPDX-License-Identifier: Apache-2.0
// What the two containers of Megatron-Core's distributed checkpoints share:
// turning a catalog of global tensors and objects under their sharded keys into
// one that says what they are.
//
//   kind, param, state   from optimizer.state.<state>.<param>
//   tp                   from the boxes, else from the table (rules.h)
//   topology             from the args, else from boxes and writers
//   objects              entries of the common part, then those of grids
//   flat buffers         seen as the parameters that they hold (buckets.h)
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/state/common.h"

namespace ckpt::megatron {

// What one of the two containers says about itself.
struct DistContainer {
  std::string_view format;   // "megatron_zarr"
  std::string_view backend;  // "zarr"
  // A sign of an unfinished save; "" if there is none.
  std::string (*unfinished)(const std::string& directory);
  const char* hint;  // what to do about it
};

// The catalog of the checkpoint at `path`, as far as metadata.json tells: its
// place, the backend and its version. Throws for an unfinished save, for what
// is not a distributed checkpoint, and for a backend that another format reads.
Catalog open_dist_catalog(const std::string& path,
                          const DistContainer& container,
                          const formats::ReadOptions& options);

// The catalog must have tensors with their pieces, and objects of grids. Throws
// input_error for grids of objects that don't fit together; one that lacks
// entries is a problem (damage).
void finish_dist_catalog(Catalog& catalog, const Common& common);

// Warns of names of Megatron-LM's own modules, as Megatron-DeepSpeed's model
// has them in any container: Megatron-Core asks for others.
void warn_of_old_names(Catalog& catalog);

// Reads a step whose parts are separate containers of the torch_dist backend:
// model, random numbers, optimizer. If two common parts have an entry, the last
// one's counts. `path` is the folder that holds them.
Catalog read_dist_parts(const std::string& path,
                        const std::vector<std::string>& containers,
                        const formats::ReadOptions& options);

// The rank that wrote a file: "__3_0.distcp", "optimizer__3_1.distcp".
std::optional<uint64_t> writer_rank(std::string_view file_name);

}  // namespace ckpt::megatron
