// SPDX-License-Identifier: Apache-2.0
// The slots of one worker, each with buffers on both sides and a stream.
//
//   pinned, up     | in (bytes + margin) | tasks |
//   device         | in | mid | out | sums | tasks |
//   pinned, down   | out | sums |
//
// A device buffer has a margin on both sides, because kernels load whole
// vectors.
#pragma once

#include <vector>

#include "reshard/cuda/device.h"

namespace ckpt::cuda {

class Ring {
 public:
  Ring(uint32_t device, uint32_t slots, uint64_t bytes);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  std::byte* in(uint32_t slot) { return slots_.at(slot).in; }
  const std::byte* out(uint32_t slot) const { return slots_.at(slot).out; }
  void submit(uint32_t slot, const CkptCudaWork& work);
  void wait(uint32_t slot, CkptCudaSum* sums);

 private:
  // Room for tasks and sums grows when a block needs more.
  struct Slot {
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::byte* device = nullptr;
    std::byte* tasks = nullptr;         // pinned
    std::byte* device_tasks = nullptr;  // sums follow
    std::byte* sums = nullptr;          // pinned
    uint64_t task_room = 0;
    uint64_t sum_room = 0;
    uint64_t sum_count = 0;  // of the work in progress
    Stream* stream = nullptr;
  };
  void make_room(Slot& slot, uint64_t task_bytes, uint64_t sum_bytes);
  void close() noexcept;
  void check(const CkptCudaWork& work) const;

  const uint32_t device_;
  const uint64_t bytes_;
  const uint64_t pitch_;  // from a device buffer to the next
  std::vector<Slot> slots_;
  std::byte* table_ = nullptr;
};

}  // namespace ckpt::cuda
