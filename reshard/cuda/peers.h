// The exchange between ranks' GPUs in rounds (abi.h):
//
//   outbox (pinned) ─upload─► device ─group of sends─► ... peers
//   inbox  (pinned) ◄download─ device ◄group of receives─
//
// Every wait has an end: it polls the communicator and the stream, and when
// its time is over, or a peer's was, the communicator is torn down and all
// later calls fail at once.
#pragma once

#include <chrono>
#include <vector>

#include "reshard/cuda/comm.h"

namespace ckpt::cuda {

class Peers {
 public:
  Peers(uint32_t device, uint32_t rank, uint32_t size,
        const unsigned char id[CKPT_CUDA_ID_BYTES], uint64_t bytes,
        double seconds);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  std::byte* outbox() { return out_; }
  const std::byte* inbox() const { return in_; }
  void exchange(const uint64_t* send, const uint64_t* recv, double seconds);

 private:
  using Time = std::chrono::steady_clock::time_point;
  void wait_for_comm(Time end, const char* what);
  void wait_for_stream(Time end);
  std::vector<Parcel> parcels(const uint64_t* counts, std::byte* from,
                              uint64_t& all) const;
  void close() noexcept;

  const uint32_t device_;
  const uint32_t rank_;
  const uint32_t size_;
  const uint64_t bytes_;
  Comm* comm_ = nullptr;  // null: torn down
  Stream* stream_ = nullptr;
  std::byte* out_ = nullptr;
  std::byte* in_ = nullptr;
  std::byte* device_out_ = nullptr;
  std::byte* device_in_ = nullptr;
};

}  // namespace ckpt::cuda
