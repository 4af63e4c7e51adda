// SPDX-License-Identifier: Apache-2.0
// What an exchange between ranks needs from the library that carries it.
// comm_nccl.cc uses NCCL; comm_host.cc is for tests, between processes and
// threads of one machine. All functions throw a std::runtime_error that says
// what failed.
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
// True once what was begun is done; throws if it failed, here or elsewhere.
bool comm_ready(Comm* comm);

struct Parcel {
  uint32_t rank = 0;
  std::byte* at = nullptr;  // device memory
  uint64_t bytes = 0;
};
// One group of sends and receives, after what is already in the stream.
void comm_exchange(Comm* comm, std::span<const Parcel> sends,
                   std::span<const Parcel> receives, Stream* stream);
// Frees it. If nothing is in progress, finalizes it with the other ranks,
// within 2 s; otherwise ends what is in progress, on all ranks.
void comm_abort(Comm* comm) noexcept;

}  // namespace ckpt::cuda
