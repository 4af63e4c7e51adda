// SPDX-License-Identifier: Apache-2.0
// Tensors in memory as the source of a write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ckpt/ckpt.h"

namespace ckpt::library {

// Adds the caller's bytes as a file of a catalog; returns its index.
uint32_t add_memory(Catalog& catalog, std::span<const std::byte> bytes);

// The shards of all ranks; shards of one name make one tensor, in the given
// order. Throws unfaithful_error if their dtypes or global shapes differ,
// usage_error for the wrong number of bytes.
Catalog catalog_of(std::span<const ShardedTensor> shards);

// Throws usage_error for a dtype that does not exist, a shape that is too
// large, a box outside of it, and bytes that are not the box's.
void check_shard(const ShardedTensor& shard);

// The same for a catalog that a program made or changed: files that are not in
// it and names that are there twice, besides. What readers and planner prove is
// left to them.
void check_catalog(const Catalog& catalog);

}  // namespace ckpt::library
