// SPDX-License-Identifier: Apache-2.0
// Copies of runs and of single elements. Each function is one thread's part of
// one unit.
#pragma once

#include "reshard/cuda/tasks.h"

namespace ckpt::cuda {

// The part of a slot that belongs to its run.
struct RowSlot {
  uint64_t from = 0;  // bytes in the source's buffer
  uint64_t to = 0;    // in the target's
  uint32_t bytes = 0;
};

CKPT_HD RowSlot row_slot(const RowsTask& task, uint32_t slot) {
  if (slot >= task.slots) return {};
  const uint32_t run = task.per_run.quotient(slot);
  const uint32_t place = slot - run * task.per_run.divisor;
  uint64_t in = task.in;
  uint64_t out = task.out;
  task.nest.find(run, in, out);
  const uint64_t begin = (out & ~uint64_t{15}) + uint64_t{place} * 16;
  const uint64_t low = begin > out ? begin : out;
  const uint64_t end = out + task.bytes;
  const uint64_t high = begin + 16 < end ? begin + 16 : end;
  if (low >= high) return {};
  return {in + (low - out), low, static_cast<uint32_t>(high - low)};
}

template <class T>
CKPT_HD void copy_by(const std::byte* from, std::byte* to, uint32_t bytes) {
  for (uint32_t k = 0; k < bytes; k += sizeof(T))
    store<T>(to + k, load<T>(from + k));
}

CKPT_HD void copy_ragged(uint32_t unit, const std::byte* from, std::byte* to,
                         uint32_t bytes) {
  if (unit == 8) return copy_by<uint64_t>(from, to, bytes);
  if (unit == 4) return copy_by<uint32_t>(from, to, bytes);
  if (unit == 2) return copy_by<uint16_t>(from, to, bytes);
  copy_by<uint8_t>(from, to, bytes);
}

// All loads come before the first store, so a thread has four vectors in flight
// at once.
CKPT_HD void copy_rows(const RowsTask& task, const Buffers& buffers,
                       uint32_t unit, uint32_t thread) {
  const std::byte* in = buffers.of(task.in_buffer);
  std::byte* out = buffers.of(task.out_buffer);
  RowSlot slots[kSlotsPerThread];
  Vec16 values[kSlotsPerThread];
  CKPT_UNROLL
  for (uint32_t k = 0; k < kSlotsPerThread; ++k) {
    slots[k] = row_slot(task, unit * kUnitSlots + k * kThreads + thread);
    if (slots[k].bytes == 16) values[k] = load_any(in, slots[k].from);
  }
  CKPT_UNROLL
  for (uint32_t k = 0; k < kSlotsPerThread; ++k) {
    if (slots[k].bytes == 16)
      store(out + slots[k].to, values[k]);
    else
      copy_ragged(task.unit, in + slots[k].from, out + slots[k].to,
                  slots[k].bytes);
  }
}

CKPT_HD void copy_element(const ElementsTask& task, const std::byte* from,
                          std::byte* to) {
  if (task.aligned) {
    switch (task.element) {
      case 1:
        return store(to, load<uint8_t>(from));
      case 2:
        return store(to, load<uint16_t>(from));
      case 4:
        return store(to, load<uint32_t>(from));
      case 8:
        return store(to, load<uint64_t>(from));
      case 16:
        return store(to, load<Vec16>(from));
      default:
        break;
    }
  }
  for (uint32_t k = 0; k < task.element; ++k) to[k] = from[k];
}

CKPT_HD void copy_elements(const ElementsTask& task, const Buffers& buffers,
                           uint32_t unit, uint32_t thread) {
  CKPT_UNROLL
  for (uint32_t k = 0; k < kSlotsPerThread; ++k) {
    const uint32_t n = unit * kUnitSlots + k * kThreads + thread;
    if (n >= task.count) return;
    uint64_t in = task.in;
    uint64_t out = task.out;
    task.nest.find(n, in, out);
    copy_element(task, buffers.of(task.in_buffer) + in,
                 buffers.of(task.out_buffer) + out);
  }
}

}  // namespace ckpt::cuda
