// SPDX-License-Identifier: Apache-2.0
// What a write has to know of elements that are made as they are read.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "ckpt/catalog.h"
#include "reshard/engine.h"

namespace ckpt::library {

// The tensors that have some: nobody wrote digests of those.
std::set<std::string> decoded_tensors(const Catalog& source);

// What a plan reads of files, where `bytes` counts elements that are made.
uint64_t bytes_to_read(const Catalog& source, uint64_t bytes);

// Takes what makes them out of the run's memory; returns how much that is.
uint64_t leave_room(const Catalog& source, reshard::RunOptions& run);

}  // namespace ckpt::library
