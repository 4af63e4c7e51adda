// SPDX-License-Identifier: Apache-2.0
// The exchange by NCCL: one communicator that never blocks its caller.
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#include "reshard/cuda/comm.h"
#include "reshard/cuda/device_cuda.h"

namespace ckpt::cuda {

struct Comm {
  ncclComm_t comm = nullptr;
};

namespace {

static_assert(sizeof(ncclUniqueId) == CKPT_CUDA_ID_BYTES);

// A non-blocking communicator says "in progress" where another would wait.
void require(ncclResult_t status, const char* what) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  throw std::runtime_error(std::string(what) + ": NCCL says " +
                           ncclGetErrorString(status));
}

// The calls of one round. If a thread's group stays open, whatever the thread
// later asks of NCCL is queued and never started, so a failed call ends the
// group, too.
class Group {
 public:
  Group() { require(ncclGroupStart(), "beginning a round"); }
  ~Group() {
    if (open_) ncclGroupEnd();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void end() {
    open_ = false;
    require(ncclGroupEnd(), "ending a round");
  }

 private:
  bool open_ = true;
};

// The time limit for the last call to NCCL: a rank that failed never answers.
constexpr std::chrono::seconds kLastWait{2};

// Without it, a destroyed communicator may still be sending. False for one that
// has failed or whose other ranks don't come: that can only be aborted.
bool finalize(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const auto ask = [&] {
    return ncclCommGetAsyncError(comm, &state) == ncclSuccess;
  };
  if (!ask() || state != ncclSuccess) return false;
  const ncclResult_t begun = ncclCommFinalize(comm);
  if (begun != ncclSuccess && begun != ncclInProgress) return false;
  const auto end = std::chrono::steady_clock::now() + kLastWait;
  while (ask() && state == ncclInProgress &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return state == ncclSuccess;
}

}  // namespace

std::string comm_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return {};
  return ", NCCL " + std::to_string(version / 10000) + "." +
         std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}
bool comm_exists() { return true; }

void comm_id(unsigned char* id) {
  ncclUniqueId made;
  require(ncclGetUniqueId(&made), "making an id for the ranks' GPUs");
  std::memcpy(id, &made, sizeof made);
}

Comm* comm_start(uint32_t rank, uint32_t size, const unsigned char* id) {
  ncclUniqueId given;
  std::memcpy(&given, id, sizeof given);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  auto comm = std::make_unique<Comm>();
  require(ncclCommInitRankConfig(&comm->comm, static_cast<int>(size), given,
                                 static_cast<int>(rank), &config),
          "meeting the other ranks' GPUs");
  return comm.release();
}

bool comm_ready(Comm* comm) {
  ncclResult_t state = ncclSuccess;
  require(ncclCommGetAsyncError(comm->comm, &state), "asking NCCL");
  require(state, "exchanging");
  return state == ncclSuccess;
}

void comm_exchange(Comm* comm, std::span<const Parcel> sends,
                   std::span<const Parcel> receives, Stream* stream) {
  Group group;
  for (const Parcel& parcel : sends)
    require(ncclSend(parcel.at, parcel.bytes, ncclUint8,
                     static_cast<int>(parcel.rank), comm->comm, stream->stream),
            "sending");
  for (const Parcel& parcel : receives)
    require(ncclRecv(parcel.at, parcel.bytes, ncclUint8,
                     static_cast<int>(parcel.rank), comm->comm, stream->stream),
            "receiving");
  group.end();
}

void comm_abort(Comm* comm) noexcept {
  if (comm->comm) {
    if (finalize(comm->comm))
      ncclCommDestroy(comm->comm);
    else
      ncclCommAbort(comm->comm);
  }
  delete comm;
}

}  // namespace ckpt::cuda
