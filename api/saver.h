// SPDX-License-Identifier: Apache-2.0
// What many ranks give, as the source of one write.
#pragma once

#include <string>
#include <vector>

#include "ckpt/sharded.h"

namespace ckpt::library {

// `shards` in the order in which they are to be files of the catalog, those
// that are read before their replicas; of the ranks' states the rest. Throws
// unfaithful_error for grids that are not complete.
Catalog catalog_of(std::vector<ShardedTensor> shards,
                   std::vector<RankState> ranks, const std::string& format);

}  // namespace ckpt::library
