// SPDX-License-Identifier: Apache-2.0
// What an exchange between ranks needs of the library that carries it.
// comm_nccl.cc does it with NCCL; comm_host.cc for tests, between processes and
// threads of one machine. Everything throws std::runtime_error that says what
// failed.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "reshard/cuda/abi.h"
#include "reshard/cuda/device.h"

namespace ckpt::cuda {

struct Comm;

std::string comm_version();  // ", NCCL 2.28.3", or "" without NCCL
bool comm_exists();

void comm_id(unsigned char id[CKPT_CUDA_ID_BYTES]);
// Begins to meet the other ranks.
Comm* comm_start(uint32_t rank, uint32_t size,
                 const unsigned char id[CKPT_CUDA_ID_BYTES]);
// True when what was begun is done; throws if it failed, here or elsewhere.
bool comm_ready(Comm* comm);

struct Parcel {
  uint32_t rank = 0;
  std::byte* at = nullptr;  // device memory
  uint64_t bytes = 0;
};
// One group of sends and receives, after what the stream has already.
void comm_exchange(Comm* comm, std::span<const Parcel> sends,
                   std::span<const Parcel> receives, Stream* stream);
// Frees it: what has nothing under way is finalized with the other ranks,
// within 2 s; else whatever is under way is ended, on all ranks.
void comm_abort(Comm* comm) noexcept;

}  // namespace ckpt::cuda
