// SPDX-License-Identifier: Apache-2.0
// Makes pieces from an index and the headers of the ranks' files.
//
//   index       emb.weight [11, 7]: rank_0 [[0, 39]], rank_1 [[39, 77]]
//   rank_0      emb.weight F32 [39], at byte 168
//   pieces      flat [0, 39) of the whole box, file 0 at byte 168 …
//
// A file has the elements of several ranges in sequence. Copies of the same
// elements (replicas) may overlap in any way.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/olmo_core/v1/index.h"

namespace ckpt::olmo_core::v1 {

// The content of a folder of the checkpoint.
struct Part {
  std::string folder;     // "model", "optim" or ""
  std::string directory;  // its path
  Index index;
  // One for each entry of the index, in its order, of kind model.
  std::vector<Tensor> tensors;
  std::vector<bool> sharded;  // whether each tensor was sharded
  std::set<uint32_t> ranks;   // of the files that the index names
};

// Opens the headers of all files that an index names (a file from which nothing
// is read may be missing), proves that each tensor is covered, and adds the
// files to the catalog. Throws input_error or missing_error.
Part read_part(const std::string& home, const std::string& folder,
               Catalog& catalog);

}  // namespace ckpt::olmo_core::v1
