// The exchange between threads that play ranks, for tests. A round copies when
// both sides of each parcel are there; a rank that ends takes the others' wait
// with it, as NCCL's abort does.
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "reshard/cuda/comm.h"

namespace ckpt::cuda {
namespace {

// What the ranks of one id share.
struct Hub {
  std::mutex mutex;
  uint32_t size = 0;
  uint32_t met = 0;
  bool broken = false;
  // Bytes on their way from one rank to another, in order.
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::vector<std::byte>>>
      wire;
};

struct Hubs {
  std::mutex mutex;
  uint64_t next = 1;
  std::map<uint64_t, std::weak_ptr<Hub>> all;
};

Hubs& hubs() {
  static Hubs hubs;
  return hubs;
}

}  // namespace

struct Comm {
  std::shared_ptr<Hub> hub;
  uint32_t rank = 0;
  std::vector<Parcel> sends, receives;  // that wait for stream or peer
  Stream* stream = nullptr;
};

std::string comm_version() { return ", and threads for ranks"; }
bool comm_exists() { return true; }

void comm_id(unsigned char* id) {
  const std::lock_guard lock(hubs().mutex);
  const uint64_t number = hubs().next++;
  std::memset(id, 0, CKPT_CUDA_ID_BYTES);
  std::memcpy(id, &number, sizeof number);
}

Comm* comm_start(uint32_t rank, uint32_t size, const unsigned char* id) {
  uint64_t number = 0;
  std::memcpy(&number, id, sizeof number);
  const std::lock_guard lock(hubs().mutex);
  std::shared_ptr<Hub> hub = hubs().all[number].lock();
  if (!hub) hubs().all[number] = hub = std::make_shared<Hub>();
  hub->size = size;
  ++hub->met;
  auto comm = std::make_unique<Comm>();
  comm->hub = hub;
  comm->rank = rank;
  return comm.release();
}

bool comm_ready(Comm* comm) {
  Hub& hub = *comm->hub;
  const std::lock_guard lock(hub.mutex);
  if (hub.broken) throw std::runtime_error("exchanging: a rank has ended");
  if (hub.met < hub.size) return false;
  for (const Parcel& parcel : comm->sends)
    hub.wire[{comm->rank, parcel.rank}].emplace_back(parcel.at,
                                                     parcel.at + parcel.bytes);
  comm->sends.clear();
  std::erase_if(comm->receives, [&](const Parcel& parcel) {
    auto& queue = hub.wire[{parcel.rank, comm->rank}];
    if (queue.empty()) return false;
    if (queue.front().size() != parcel.bytes)
      throw std::runtime_error("exchanging: ranks differ in their counts");
    std::memcpy(parcel.at, queue.front().data(), parcel.bytes);
    queue.erase(queue.begin());
    return true;
  });
  return comm->receives.empty();
}

void comm_exchange(Comm* comm, std::span<const Parcel> sends,
                   std::span<const Parcel> receives, Stream* stream) {
  wait(stream);  // what was uploaded is there
  comm->sends.assign(sends.begin(), sends.end());
  comm->receives.assign(receives.begin(), receives.end());
}

void comm_abort(Comm* comm) noexcept {
  {
    const std::lock_guard lock(comm->hub->mutex);
    comm->hub->broken = true;
  }
  delete comm;
}

}  // namespace ckpt::cuda
