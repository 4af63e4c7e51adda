// SPDX-License-Identifier: Apache-2.0
// The same tensors in the files of several ranks. A DTensor or ShardedTensor
// says which part of the whole it is; of FSDP's flat parameters each file has
// a plain run of elements, and the ranks' order is theirs.
//
//   rank 0  flat_param_0 [39] ─┐
//   rank 1  flat_param_0 [39] ─┴─►  flat_param_0 [78], pieces [0, 39) [39, 78)
//
// Other tensors are replicas. Private to this room.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/catalog.h"
#include "containers/torch/tree.h"
#include "formats/fsdp/flat_params.h"

namespace ckpt::torch {

class RankTensors {
 public:
  // Flat parameters, if there are any.
  RankTensors(Catalog& catalog, const fsdp::FlatParameters* flat);

  // A tensor of the file `path`, which rank `rank` wrote; ranks come in their
  // order. Throws input_error where it contradicts the files before.
  void add(const std::string& path, uint64_t rank, const NamedTensor& found);

  // After all of `ranks`: throws input_error for a flat parameter of which one
  // has no part. Names of those whose parts all have one length, padded maybe.
  std::unordered_set<std::string> finish(uint64_t ranks) const;

 private:
  struct Part {
    uint64_t ranks = 0;  // that have been added
    uint64_t first = 0;  // elements of rank 0's part
    uint64_t last = 0;   // of the latest
  };
  bool is_part(const NamedTensor& found) const;
  void add_part(const std::string& path, uint64_t rank, Tensor tensor);

  Catalog& catalog_;
  std::unordered_set<std::string> keys_;  // of flat parameters
  // Parameters in them. With use_orig_params=True a local state dict has each
  // rank's elements under these names too: views into the flat parameter.
  std::unordered_set<std::string> views_;
  uint64_t count_ = 0;                             // of flat parameters
  std::unordered_map<std::string, size_t> index_;  // in the catalog
  std::unordered_map<std::string, Part> parts_;
};

}  // namespace ckpt::torch
