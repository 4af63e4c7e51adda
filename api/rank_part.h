// SPDX-License-Identifier: Apache-2.0
// Which tensors a pipeline stage and an expert-parallel rank have, whatever
// dialect names them.
#pragma once

#include "ckpt/ckpt.h"

namespace ckpt::library {

// The catalog without what other stages and other ranks' experts are; of
// tensors that stack layers or experts, the rows of this one. No byte moves.
// Throws unfaithful_error if layers are fewer than stages, or experts don't
// divide.
Catalog rank_part(Catalog catalog, const Topology& topology, const Rank& rank);

// formats::add_rank_rules by the dialect of the names, and by the config.json
// beside the checkpoint if its reader leaves that there.
void add_rank_rules(Catalog& catalog, uint32_t tp);

}  // namespace ckpt::library
