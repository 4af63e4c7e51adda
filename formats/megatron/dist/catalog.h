// SPDX-License-Identifier: Apache-2.0
// What the two containers of Megatron-Core's distributed checkpoints share:
// a catalog that holds global tensors and objects under their sharded keys
// becomes one that says what they are.
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

// What one of the two containers says of itself.
struct DistContainer {
  std::string_view format;   // "megatron_zarr"
  std::string_view backend;  // "zarr"
  // A sign of a save that was cut short; "" if there is none.
  std::string (*unfinished)(const std::string& directory);
  const char* hint;  // what to do about it
};

// The catalog of the checkpoint at `path`, as far as metadata.json tells: where
// it lies, the backend and its version. Throws for an unfinished save, for what
// is not a distributed checkpoint, and for a backend that another format reads.
Catalog open_dist_catalog(const std::string& path,
                          const DistContainer& container,
                          const formats::ReadOptions& options);

// Tensors with their pieces and objects of grids are in the catalog. Throws
// input_error for grids of objects that don't fit together; one that lacks
// entries is a problem (damage).
void finish_dist_catalog(Catalog& catalog, const Common& common);

// A step whose parts are containers of their own, of the torch_dist backend:
// model, random numbers, optimizer. Of two common parts that have an entry the
// last one's counts. `path`: the folder that they lie in.
Catalog read_dist_parts(const std::string& path,
                        const std::vector<std::string>& containers,
                        const formats::ReadOptions& options);

// The rank that wrote a file: "__3_0.distcp", "optimizer__3_1.distcp".
std::optional<uint64_t> writer_rank(std::string_view file_name);

}  // namespace ckpt::megatron
