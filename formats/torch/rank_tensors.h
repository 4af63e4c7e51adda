// SPDX-License-Identifier: Apache-2.0
// Joins the same tensors from the files of several ranks. A DTensor or
// ShardedTensor says which part of the whole it is; of FSDP's flat parameters,
// each file has a plain run of elements, in rank order.
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
  // `flat`: the flat parameters, if there are any.
  RankTensors(Catalog& catalog, const fsdp::FlatParameters* flat);

  // Adds a tensor of the file `path`, written by rank `rank`; ranks come in
  // order. Throws input_error if it contradicts earlier files.
  void add(const std::string& path, uint64_t rank, const NamedTensor& found);

  // Call after all of `ranks`: throws input_error if some rank has no part of a
  // flat parameter. Returns the names of those whose parts all have the same
  // length and may be padded.
  std::unordered_set<std::string> finish(uint64_t ranks) const;

 private:
  struct Part {
    uint64_t ranks = 0;  // added so far
    uint64_t first = 0;  // elements of rank 0's part
    uint64_t last = 0;   // of the latest rank's
  };
  bool is_part(const NamedTensor& found) const;
  void add_part(const std::string& path, uint64_t rank, Tensor tensor);

  Catalog& catalog_;
  std::unordered_set<std::string> keys_;  // of flat parameters
  // Parameters in them. With use_orig_params=True a local state dict also has
  // each rank's elements under these names: views into the flat parameter.
  std::unordered_set<std::string> views_;
  uint64_t count_ = 0;                             // of flat parameters
  std::unordered_map<std::string, size_t> index_;  // in the catalog
  std::unordered_map<std::string, Part> parts_;
};

}  // namespace ckpt::torch
