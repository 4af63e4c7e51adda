// SPDX-License-Identifier: Apache-2.0
// The shards and objects of many ranks, as the source of one write.
#pragma once

#include <string>
#include <vector>

#include "ckpt/sharded.h"

namespace ckpt::library {

// `shards` become files of the catalog in this order, main ones before their
// replicas; the ranks' states give the rest. Throws unfaithful_error for
// incomplete grids.
Catalog catalog_of(std::vector<ShardedTensor> shards,
                   std::vector<RankState> ranks, const std::string& format);

}  // namespace ckpt::library
