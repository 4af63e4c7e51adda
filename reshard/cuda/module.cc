// SPDX-License-Identifier: Apache-2.0
// The C functions of the module: exceptions end here.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>

#include "reshard/cuda/abi.h"
#include "reshard/cuda/element.h"
#include "reshard/cuda/peers.h"
#include "reshard/cuda/ring.h"

struct CkptCudaRing : ckpt::cuda::Ring {
  using Ring::Ring;
};
struct CkptCudaPeers : ckpt::cuda::Peers {
  using Peers::Peers;
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

// Tests want the smallest work on the device, too (abi.h).
uint64_t chosen_least() {
  const char* least = std::getenv("CKPT_CUDA_LEAST");
  return least ? std::strtoull(least, nullptr, 10) : least_bytes();
}

int32_t name_device(uint32_t device, char* name) {
  return guarded([&] {
    const std::string found = device_name(device);
    found.copy(name, CKPT_CUDA_NAME_BYTES - 1);
    name[std::min<size_t>(found.size(), CKPT_CUDA_NAME_BYTES - 1)] = '\0';
  });
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

int32_t peers_id(unsigned char* id) {
  return guarded([&] { comm_id(id); });
}
int32_t peers_open(uint32_t device, uint32_t rank, uint32_t size,
                   const unsigned char* id, uint64_t bytes,
                   CkptCudaPeers** peers) {
  return guarded(
      [&] { *peers = new CkptCudaPeers(device, rank, size, id, bytes); });
}
void peers_close(CkptCudaPeers* peers) { delete peers; }
void* peers_memory(CkptCudaPeers* peers) { return peers->memory(); }
int32_t peers_begin(CkptCudaPeers* peers, const CkptCudaParcel* sends,
                    uint64_t send_count, const CkptCudaParcel* receives,
                    uint64_t receive_count) {
  return guarded([&] {
    peers->begin({sends, send_count}, {receives, receive_count});
  });
}
int32_t peers_done(CkptCudaPeers* peers, int32_t* done) {
  return guarded([&] { *done = peers->done() ? 1 : 0; });
}

const char* error() { return last_error.c_str(); }

}  // namespace

extern "C" [[gnu::visibility("default")]] const CkptCudaApi* ckpt_cuda_api() {
  static const std::string version = runtime_version() + comm_version();
  static const CkptCudaApi api = [] {
    CkptCudaApi made{};
    made.abi = CKPT_CUDA_ABI;
    made.version = version.c_str();
    made.least_bytes = chosen_least();
    made.device_count = count_devices;
    made.device_name = name_device;
    made.casts = casts;
    made.ring_open = ring_open;
    made.ring_close = ring_close;
    made.ring_in = ring_in;
    made.ring_out = ring_out;
    made.ring_submit = ring_submit;
    made.ring_wait = ring_wait;
    made.error = error;
    if (!comm_exists()) return made;
    made.peers_id = peers_id;
    made.peers_open = peers_open;
    made.peers_close = peers_close;
    made.peers_memory = peers_memory;
    made.peers_begin = peers_begin;
    made.peers_done = peers_done;
    return made;
  }();
  return &api;
}
