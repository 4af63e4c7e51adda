// SPDX-License-Identifier: Apache-2.0
// What a write needs to know about elements that are decoded as they are read.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "ckpt/catalog.h"
#include "reshard/engine.h"

namespace ckpt::library {

// The tensors of whose digests the source's manifest knows nothing: those that
// have such elements, and those of another checkpoint.
std::set<std::string> digested_elsewhere(const Catalog& source);

// The bytes that a plan reads from files, where `bytes` counts decoded
// elements.
uint64_t bytes_to_read(const Catalog& source, uint64_t bytes);

// Takes the decoders' memory from the run's; returns how much that is.
uint64_t leave_room(const Catalog& source, reshard::RunOptions& run);

}  // namespace ckpt::library
