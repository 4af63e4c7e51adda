// SPDX-License-Identifier: Apache-2.0
// The most that value trees took (lib/tree_memory.h): a catalog is made while
// the tree that it comes from is alive.
#pragma once

#include <cstdint>

namespace ckpt::tree_memory {

uint64_t peak();  // since the last forget_peak()
void forget_peak();

// The most that values were expected to take, with those beside them, where
// they were refused; 0 if none were.
uint64_t foreseen();
void foresee(uint64_t bytes);

// Pieces of tensors in `bytes` of those values; 0 if nobody counted them.
void foresee_pieces(uint64_t pieces, uint64_t bytes);
uint64_t foreseen_pieces();  // in all of foreseen()

// A limit for values that are expected to take `bytes`: that is an estimate,
// lists have spare room, and a large one is copied when it is complete.
uint64_t enough(uint64_t bytes);

}  // namespace ckpt::tree_memory
