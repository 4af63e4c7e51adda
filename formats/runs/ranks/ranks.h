// SPDX-License-Identifier: Apache-2.0
// verl's files, one per rank: parts of DTensors, whole tensors (of one rank),
// or runs of FSDP1's flat parameters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/runs/ranks/flat_units.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

// The files of one pattern: model_world_size_{W}_rank_{r}.pt.
struct RankFiles {
  uint64_t world = 0;
  std::vector<std::string> names;  // by rank
};
// Nothing if there are no rank files. Throws input_error for two world sizes
// and for a missing rank, naming its file.
std::optional<RankFiles> rank_files(const std::string& folder,
                                    const std::string& pattern);

// Which part of what FSDP cuts is in each rank's file.
//   FULL_SHARD    rank r has part r
//   HYBRID_SHARD  2 x 2: ranks 0 and 2 have part 0, ranks 1 and 3 part 1
struct Shards {
  uint64_t count = 0;
  std::vector<uint64_t> of_rank;
};
Shards one_part_each(uint64_t ranks);

// All ranks' tensors, by name: a tensor has the pieces of all ranks.
struct RankCatalog {
  Catalog catalog;
  // A state that is not a DTensor: each file has its own run of elements, or
  // its own step. Only if some are runs.
  struct Share {
    size_t tensor = 0;  // in the catalog; a run's shape is that of all parts
    bool run = false;
    // By rank, in elements. Nothing: its file lacks the state.
    std::vector<std::optional<uint64_t>> lengths;
  };
  std::vector<Share> shares;
  // Of the shares; of a model: as the meshes of its DTensors say.
  Shards shards;
  // Once shares are named: what each unit holds. Empty if nothing proves it.
  std::vector<FlatUnit> units;
  bool original = false;  // use_orig_params: numbers are parameters
  // The parameters of each group, if there are several, or not all of them.
  std::vector<std::vector<Parameter>> groups;
  // Rank 0's document, for what is not a tensor.
  std::shared_ptr<const pickle::Document> document;
};
// `shards`: of the optimizer of a model that is cut so; null for a model.
RankCatalog read_ranks(const std::string& folder, const RankFiles& files,
                       const Shards* shards,
                       const formats::ReadOptions& options);

}  // namespace ckpt::runs
