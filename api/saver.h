// SPDX-License-Identifier: Apache-2.0
// The shards and objects of many ranks, as the source of one write.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/sharded.h"

namespace ckpt::library {

// `shards` become files of the catalog in this order, main ones before their
// replicas; the ranks' states give the rest. The ranks are those of the layout:
// what belongs to a rank is kept. Throws unfaithful_error for incomplete grids.
Catalog catalog_of(std::vector<ShardedTensor> shards,
                   std::vector<RankState> ranks, const Layout& layout);

// Tells options.note of each object that `target` has no place for. If nobody
// listens, throws unfaithful_error that names the first of them.
void tell_left_out(const Target& target, const SaveOptions& options);

// ckpt::run, with `look` between the plan and the first byte.
Preview run(const Catalog& source, Layout layout, const std::string& path,
            const SaveOptions& options,
            const std::function<void(const Target& target)>& look);

}  // namespace ckpt::library
