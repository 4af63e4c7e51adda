// SPDX-License-Identifier: Apache-2.0
// The tensors of a pipeline stage and an expert-parallel rank, in any dialect.
#pragma once

#include "ckpt/ckpt.h"
#include "formats/format.h"

namespace ckpt::library {

// The catalog without other stages' tensors and other ranks' experts; of
// tensors that stack layers or experts, this rank's rows. No byte moves. Throws
// unfaithful_error if there are fewer layers than stages, or if experts don't
// divide.
Catalog rank_part(Catalog catalog, const Topology& topology, const Rank& rank);

// formats::add_rank_rules for the dialect of the names, with the config.json
// beside the checkpoint if its reader does not take it.
void add_rank_rules(Catalog& catalog, uint32_t tp);

// The rules of options.family and shard_dims_file, if the format's reader does
// not ask for them itself.
void apply_rules(Catalog& catalog, const formats::ReadOptions& options);

}  // namespace ckpt::library
