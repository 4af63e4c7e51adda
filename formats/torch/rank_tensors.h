// SPDX-License-Identifier: Apache-2.0
// Joins the same tensors from the files of several ranks. A DTensor or
// ShardedTensor says which part of the whole it is; of FSDP's flat parameters,
// each file has a plain run of elements, in rank order.
//
//   rank 0  flat_param_0 [39] ─┐
//   rank 1  flat_param_0 [39] ─┴─►  flat_param_0 [78], pieces [0, 39) [39, 78)
//
// Other tensors are taken for copies, unless rank_shares.h finds that they are
// not, or --shard-dims says so; what nothing explains is proven
// (lib/unruled.h). Private to this room.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "containers/torch/tree.h"
#include "formats/fsdp/flat_params.h"
#include "formats/torch/rank_shares.h"
#include "models/rules.h"

namespace ckpt::torch {

class RankTensors {
 public:
  // `flat`: the flat parameters, if they are known; else `shares` says what
  // plain tensors are. Each may be null.
  // `user`: the rules of --shard-dims, for plain tensors that no other knows.
  RankTensors(Catalog& catalog, const fsdp::FlatParameters* flat,
              const RankShares* shares = nullptr, families::Rules user = {});

  // Adds a tensor of the file `path`, written by rank `rank`; ranks come in
  // order. Throws input_error if it contradicts earlier files.
  void add(const std::string& path, uint64_t rank, const NamedTensor& found);

  // What `shares` found besides replicas, for a note.
  struct Counts {
    size_t parts = 0;  // tensors that were joined
    size_t own = 0;    // … that are of one rank each
  };
  Counts counts() const { return counts_; }

  // Call after all of `ranks`: throws input_error if some rank has no part of a
  // flat parameter. Returns the names of those whose parts all have the same
  // length and may be padded.
  std::unordered_set<std::string> finish(uint64_t ranks);

 private:
  struct Part {
    uint64_t ranks = 0;  // added so far
    uint64_t first = 0;  // elements of rank 0's part
    uint64_t last = 0;   // of the latest rank's
  };
  bool is_part(const NamedTensor& found) const;
  void add_part(const std::string& path, uint64_t rank, Tensor tensor);
  void join(const Where& where, Tensor tensor);
  void add_own(const std::string& path, Tensor tensor);
  void drop_padding(Tensor& whole, uint64_t length);

  Catalog& catalog_;
  const RankShares* shares_;
  const families::Rules user_;
  Counts counts_;
  std::unordered_set<std::string> keys_;  // of flat parameters
  // Parameters in them. With use_orig_params=True a local state dict also has
  // each rank's elements under these names: views into the flat parameter.
  std::unordered_set<std::string> views_;
  uint64_t count_ = 0;                             // of flat parameters
  std::unordered_map<std::string, size_t> index_;  // in the catalog
  std::unordered_map<std::string, Part> parts_;
  std::vector<std::string> joined_;  // by shares_
  // Plain tensors that nothing explains: the rank of each piece.
  std::unordered_map<std::string, std::vector<size_t>> plain_;
};

}  // namespace ckpt::torch
