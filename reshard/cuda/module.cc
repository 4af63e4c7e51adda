// The C functions of the module: exceptions end here.
#include <exception>
#include <string>

#include "reshard/cuda/abi.h"
#include "reshard/cuda/numbers.h"
#include "reshard/cuda/peers.h"
#include "reshard/cuda/ring.h"

struct CkptCudaRing : ckpt::cuda::Ring {
  using Ring::Ring;
};

namespace {

using namespace ckpt::cuda;

thread_local std::string last_error;

template <class Work>
int32_t guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}

int32_t count_devices(uint32_t* count) {
  return guarded([&] { *count = device_count(); });
}

int32_t casts(uint32_t from, uint32_t to) { return can_cast(from, to); }

int32_t ring_open(uint32_t device, uint32_t slots, uint64_t bytes,
                  CkptCudaRing** ring) {
  return guarded([&] { *ring = new CkptCudaRing(device, slots, bytes); });
}
void ring_close(CkptCudaRing* ring) { delete ring; }
void* ring_in(CkptCudaRing* ring, uint32_t slot) { return ring->in(slot); }
const void* ring_out(CkptCudaRing* ring, uint32_t slot) {
  return ring->out(slot);
}
int32_t ring_submit(CkptCudaRing* ring, uint32_t slot,
                    const CkptCudaWork* work) {
  return guarded([&] { ring->submit(slot, *work); });
}
int32_t ring_wait(CkptCudaRing* ring, uint32_t slot, CkptCudaSum* sums) {
  return guarded([&] { ring->wait(slot, sums); });
}

const char* error() { return last_error.c_str(); }

}  // namespace

extern "C" [[gnu::visibility("default")]] const CkptCudaApi* ckpt_cuda_api() {
  static const std::string version = runtime_version() + peers_version();
  static const CkptCudaApi api = [] {
    CkptCudaApi made{};
    made.abi = CKPT_CUDA_ABI;
    made.version = version.c_str();
    made.least_bytes = least_bytes();
    made.device_count = count_devices;
    made.casts = casts;
    made.ring_open = ring_open;
    made.ring_close = ring_close;
    made.ring_in = ring_in;
    made.ring_out = ring_out;
    made.ring_submit = ring_submit;
    made.ring_wait = ring_wait;
    made.error = error;
    return made;
  }();
  return &api;
}
