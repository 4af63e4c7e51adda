// SPDX-License-Identifier: Apache-2.0
// The exchange between ranks' GPUs in rounds (abi.h):
//
//   pinned ─upload─► device ─one group of sends and receives─► peers' devices
//   pinned ◄─download─ device ◄─────┘
//
// Nothing here waits: done() checks the communicator, then the stream.
#pragma once

#include <span>
#include <vector>

#include "reshard/cuda/comm.h"

namespace ckpt::cuda {

class Peers {
 public:
  Peers(uint32_t device, uint32_t rank, uint32_t size,
        const unsigned char id[CKPT_CUDA_ID_BYTES], uint64_t bytes);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  std::byte* memory() { return memory_; }
  void begin(std::span<const CkptCudaParcel> sends,
             std::span<const CkptCudaParcel> receives);
  bool done();

 private:
  enum class State { kMeeting, kGrouped, kDownloading, kIdle };
  std::vector<Parcel> parcels(std::span<const CkptCudaParcel> given) const;
  void look();
  // Does the work, and tears the communicator down if that throws.
  template <class Work>
  void guarded(Work work);
  void close() noexcept;

  const uint32_t device_;
  const uint32_t rank_;
  const uint32_t size_;
  const uint64_t bytes_;
  State state_ = State::kMeeting;
  std::vector<CkptCudaParcel> receives_;  // of the round
  Comm* comm_ = nullptr;                  // null: torn down
  Stream* stream_ = nullptr;
  std::byte* memory_ = nullptr;
  std::byte* device_memory_ = nullptr;
};

}  // namespace ckpt::cuda
