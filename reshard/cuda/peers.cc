#include "reshard/cuda/peers.h"

#include <stdexcept>
#include <thread>

namespace ckpt::cuda {
namespace {

constexpr uint64_t kAlign = 16;  // of each rank's part

std::chrono::steady_clock::time_point after(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

// Between two looks; a round of some MiB takes longer.
void pause() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

void check_time(std::chrono::steady_clock::time_point end, const char* what) {
  if (std::chrono::steady_clock::now() >= end)
    throw std::runtime_error(std::string(what) +
                             ": not done in the time given; a rank may have "
                             "ended");
}

}  // namespace

Peers::Peers(uint32_t device, uint32_t rank, uint32_t size,
             const unsigned char* id, uint64_t bytes, double seconds)
    : device_(device), rank_(rank), size_(size), bytes_(bytes) {
  use_device(device);
  try {
    stream_ = make_stream();
    out_ = pin(bytes);
    in_ = pin(bytes);
    device_out_ = allocate(bytes);
    device_in_ = allocate(bytes);
    comm_ = comm_start(rank, size, id);
    wait_for_comm(after(seconds), "meeting the other ranks");
  } catch (...) {
    close();
    throw;
  }
}

Peers::~Peers() { close(); }

void Peers::close() noexcept {
  if (comm_) comm_abort(comm_);
  comm_ = nullptr;
  if (stream_) drop_stream(stream_);
  for (std::byte* at : {out_, in_})
    if (at) unpin(at);
  for (std::byte* at : {device_out_, device_in_})
    if (at) release(at);
}

void Peers::wait_for_comm(Time end, const char* what) {
  while (!comm_ready(comm_)) {
    check_time(end, what);
    pause();
  }
}

// NCCL's kernels wait for peers inside of the stream, so its errors are looked
// for while the stream is waited for.
void Peers::wait_for_stream(Time end) {
  mark(stream_);
  while (!reached(stream_)) {
    comm_ready(comm_);
    check_time(end, "a round of the exchange");
    pause();
  }
}

std::vector<Parcel> Peers::parcels(const uint64_t* counts, std::byte* from,
                                   uint64_t& all) const {
  std::vector<Parcel> parcels;
  all = 0;
  for (uint32_t r = 0; r < size_; ++r) {
    if (counts[r] > bytes_ || all > bytes_ - counts[r])
      throw std::invalid_argument("a round that is larger than its buffers");
    if (counts[r] && r == rank_)
      throw std::invalid_argument("a rank that sends to itself");
    if (counts[r]) parcels.push_back({r, from + all, counts[r]});
    all += (counts[r] + kAlign - 1) / kAlign * kAlign;
  }
  return parcels;
}

void Peers::exchange(const uint64_t* send, const uint64_t* recv,
                     double seconds) {
  if (!comm_) throw std::runtime_error("the exchange has failed before");
  use_device(device_);
  uint64_t out = 0, in = 0;
  const auto sends = parcels(send, device_out_, out);
  const auto receives = parcels(recv, device_in_, in);
  const Time end = after(seconds);
  try {
    if (out) upload(device_out_, out_, std::min(out, bytes_), stream_);
    comm_exchange(comm_, sends, receives, stream_);
    wait_for_comm(end, "a round of the exchange");
    if (in) download(in_, device_in_, std::min(in, bytes_), stream_);
    wait_for_stream(end);
  } catch (...) {
    comm_abort(comm_);
    comm_ = nullptr;
    throw;
  }
}

}  // namespace ckpt::cuda
