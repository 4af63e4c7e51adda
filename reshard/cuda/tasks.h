// SPDX-License-Identifier: Apache-2.0
// What kernels work on: descriptions of copies, casts, transposes and digests
// of one block, as stored in device memory. batch.cc makes them.
//
// A kernel's work is cut into units, one for each block of threads; a task has
// the units [first_unit, first_unit of the next).
#pragma once

#include "reshard/cuda/hd.h"

namespace ckpt::cuda {

// Where the buffers of a slot are: CkptCudaBuffer.
struct Buffers {
  std::byte* in = nullptr;
  std::byte* mid = nullptr;
  std::byte* out = nullptr;

  // Not an array: a variable index into a kernel's arguments would put all of
  // them into local memory.
  CKPT_HD std::byte* of(uint32_t buffer) const {
    return buffer == 0 ? in : (buffer == 1 ? mid : out);
  }
};

// Runs of bytes, 16 to a slot of the target's aligned vectors:
//
//   target   |....xxxx|xxxxxxxx|xxx.....|     a run: 3 slots, the first and
//                                             the last of them not whole
struct RowsTask {
  uint64_t in = 0;
  uint64_t out = 0;
  Nest nest;           // of runs
  Divider per_run;     // slots
  uint32_t slots = 0;  // of all runs
  uint32_t bytes = 0;  // of a run
  uint32_t unit = 1;   // 1, 2, 4 or 8: bytes aligned on both sides
  uint32_t in_buffer = 0;
  uint32_t out_buffer = 0;
  uint32_t first_unit = 0;
};

// Runs of elements to cast, `per_slot` of them per slot.
struct CastTask {
  uint64_t in = 0;
  uint64_t out = 0;
  Nest nest;
  Divider per_run;
  uint32_t slots = 0;
  uint32_t count = 0;  // elements of a run
  uint32_t from = 0;
  uint32_t to = 0;
  bool aligned = false;  // whole slots can be stored as vectors
  uint32_t in_buffer = 0;
  uint32_t out_buffer = 0;
  uint32_t first_unit = 0;
};

// Elements that are contiguous along y in the source and along x in the target:
// a tile goes through shared memory, so that both sides see whole lines.
struct TileTask {
  uint64_t in = 0;
  uint64_t out = 0;
  Nest nest;            // of planes
  uint64_t in_x = 0;    // bytes from one x to the next in the source
  uint64_t out_y = 0;   // bytes from one y to the next in the target
  uint32_t size_x = 0;  // elements
  uint32_t size_y = 0;
  Divider tiles_x;  // tiles along x, and
  Divider tiles_y;
  uint32_t element = 1;
  bool in_words = false;  // four bytes at once along y
  bool out_words = false;
  uint32_t in_buffer = 0;
  uint32_t out_buffer = 0;
  uint32_t first_unit = 0;
};

// Single elements of 1, 2, 4, 8 or 16 bytes, or of any other size.
struct ElementsTask {
  uint64_t in = 0;
  uint64_t out = 0;
  Nest nest;
  uint32_t count = 0;
  uint32_t element = 1;
  bool aligned = false;
  uint32_t in_buffer = 0;
  uint32_t out_buffer = 0;
  uint32_t first_unit = 0;
};

struct DigestTask {
  uint64_t at = 0;
  uint64_t content = 0;
  Nest nest;  // of runs; `out` is the step in the content
  Divider per_run;
  uint32_t slots = 0;
  uint32_t bytes = 0;
  uint32_t buffer = 0;
  uint32_t sum = 0;  // its index among the sums
  uint32_t first_unit = 0;
};

// Slots or elements in a unit.
inline constexpr uint32_t kSlotsPerThread = 4;
inline constexpr uint32_t kUnitSlots = kThreads * kSlotsPerThread;
inline constexpr uint32_t kDigestSlotsPerThread = 16;
inline constexpr uint32_t kDigestUnitSlots = kThreads * kDigestSlotsPerThread;

}  // namespace ckpt::cuda
