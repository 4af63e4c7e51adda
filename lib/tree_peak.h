// SPDX-License-Identifier: Apache-2.0
// The most that value trees took (lib/tree_memory.h): a catalog is made while
// the tree that it comes from is alive.
#pragma once

#include <cstdint>

namespace ckpt::tree_memory {

uint64_t peak();  // since the last forget_peak()
void forget_peak();

}  // namespace ckpt::tree_memory
