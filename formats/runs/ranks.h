// SPDX-License-Identifier: Apache-2.0
// verl's files, one per rank: parts of DTensors, whole tensors (of one rank),
// or runs of FSDP1's flat parameters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/runs/order.h"
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

// All ranks' tensors, by name. `plain`: tensors that are not DTensors; with
// more than one rank, each file has its own run of elements.
struct RankCatalog {
  Catalog catalog;  // merged: a tensor has the pieces of all ranks
  // Each rank's part of a 1-dimensional tensor that is not a DTensor.
  struct Runs {
    size_t tensor = 0;  // in the catalog; its shape is that of all parts
    std::vector<uint64_t> lengths;  // by rank, in elements
  };
  std::vector<Runs> runs;
  // Once runs are named: what each flat parameter holds, by number. Empty if
  // each number is a parameter (use_orig_params).
  std::vector<std::vector<Parameter>> units;
  // Rank 0's document, for what is not a tensor.
  std::shared_ptr<const pickle::Document> document;
};
RankCatalog read_ranks(const std::string& folder, const RankFiles& files,
                       bool join_runs, const formats::ReadOptions& options);

// Assigns parameters to flat state. FSDP1 with use_orig_params=False numbers
// its units (what no layer holds, then each layer); with True, the parameters.
// `model`: in module order. Returns the reason if this fails. Returns "" if it
// succeeds; then the tensors of `ranks` are <parameter>.<state>, with `param`
// and `state`.
std::string name_runs(RankCatalog& ranks, std::span<const Tensor* const> model);

}  // namespace ckpt::runs
