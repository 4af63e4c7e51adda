// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/peers.h"

#include <stdexcept>

namespace ckpt::cuda {

Peers::Peers(uint32_t device, uint32_t rank, uint32_t size,
             const unsigned char* id, uint64_t bytes)
    : device_(device), rank_(rank), size_(size), bytes_(bytes) {
  use_device(device);
  try {
    stream_ = make_stream();
    memory_ = pin(bytes);
    device_memory_ = allocate(bytes);
    comm_ = comm_start(rank, size, id);
  } catch (...) {
    close();
    throw;
  }
}

Peers::~Peers() { close(); }

void Peers::close() noexcept {
  try {
    use_device(device_);
  } catch (const std::exception&) {  // the context is gone, with all in it
  }
  if (comm_) comm_abort(comm_);
  comm_ = nullptr;
  if (stream_) drop_stream(stream_);
  if (memory_) unpin(memory_);
  if (device_memory_) release(device_memory_);
}

template <class Work>
void Peers::guarded(Work work) {
  if (!comm_) throw std::runtime_error("the exchange has failed before");
  try {
    use_device(device_);
    work();
  } catch (...) {
    comm_abort(comm_);
    comm_ = nullptr;
    throw;
  }
}

std::vector<Parcel> Peers::parcels(
    std::span<const CkptCudaParcel> given) const {
  std::vector<Parcel> parcels;
  for (const CkptCudaParcel& parcel : given) {
    if (parcel.at > bytes_ || parcel.bytes > bytes_ - parcel.at)
      throw std::invalid_argument("a parcel beyond the memory of its rank");
    if (parcel.rank >= size_ || parcel.rank == rank_)
      throw std::invalid_argument("a parcel to no other rank");
    parcels.push_back({parcel.rank, device_memory_ + parcel.at, parcel.bytes});
  }
  return parcels;
}

void Peers::begin(std::span<const CkptCudaParcel> sends,
                  std::span<const CkptCudaParcel> receives) {
  guarded([&] {
    if (state_ != State::kIdle)
      throw std::logic_error("a round that begins before the last is done");
    const std::vector<Parcel> out = parcels(sends), in = parcels(receives);
    for (const CkptCudaParcel& parcel : sends)
      upload(device_memory_ + parcel.at, memory_ + parcel.at, parcel.bytes,
             stream_);
    comm_exchange(comm_, out, in, stream_);
    receives_.assign(receives.begin(), receives.end());
    state_ = State::kGrouped;
  });
}

bool Peers::done() {
  if (state_ != State::kIdle) guarded([this] { look(); });
  return state_ == State::kIdle;
}

// NCCL's kernels wait for peers inside the stream, so its errors are checked
// while waiting for the stream.
void Peers::look() {
  if (!comm_ready(comm_)) return;
  if (state_ == State::kMeeting) {
    state_ = State::kIdle;
  } else if (state_ == State::kGrouped) {
    // Only now: NCCL has put the group into the stream.
    for (const CkptCudaParcel& parcel : receives_)
      download(memory_ + parcel.at, device_memory_ + parcel.at, parcel.bytes,
               stream_);
    mark(stream_);
    state_ = State::kDownloading;
  }
  if (state_ == State::kDownloading && reached(stream_)) state_ = State::kIdle;
}

}  // namespace ckpt::cuda
