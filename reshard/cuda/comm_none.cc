// SPDX-License-Identifier: Apache-2.0
// Builds without NCCL have no exchange between GPUs.
#include <stdexcept>

#include "reshard/cuda/comm.h"

namespace ckpt::cuda {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error(
      "this build has no NCCL (pip install nvidia-nccl-cu13, then "
      "scripts/build.sh)");
}

}  // namespace

std::string comm_version() { return {}; }
bool comm_exists() { return false; }
void comm_id(unsigned char*) { refuse(); }
Comm* comm_start(uint32_t, uint32_t, const unsigned char*) { refuse(); }
bool comm_ready(Comm*) { refuse(); }
void comm_exchange(Comm*, std::span<const Parcel>, std::span<const Parcel>,
                   Stream*) {
  refuse();
}
void comm_abort(Comm*) noexcept {}

}  // namespace ckpt::cuda
