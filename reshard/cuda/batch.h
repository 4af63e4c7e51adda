// SPDX-License-Identifier: Apache-2.0
// From the work that the program requests to tasks of kernels. Pure.
#pragma once

#include <vector>

#include "reshard/cuda/abi.h"
#include "reshard/cuda/digest.h"
#include "reshard/cuda/tasks.h"

namespace ckpt::cuda {

enum class Kernel : uint8_t { kRows, kElements, kTile, kCast, kDigest };

struct Launch {
  Kernel kernel = Kernel::kRows;
  uint32_t variant = 0;  // kTile: element size in bytes; kCast: index in kPairs
  uint64_t tasks = 0;    // offset in Batch::blob
  uint32_t count = 0;    // of tasks
  uint32_t units = 0;    // blocks of threads
};

struct Batch {
  std::vector<Launch> launches;  // in this order
  std::vector<std::byte> blob;   // the tasks, as the device reads them
};

// Pairs of types with their own kernel; the first one stands for all others.
struct Pair {
  uint32_t from = 0;
  uint32_t to = 0;
};
inline constexpr Pair kPairs[] = {
    {0, 0},
    {CKPT_CUDA_F32, CKPT_CUDA_BF16},
    {CKPT_CUDA_F32, CKPT_CUDA_F16},
    {CKPT_CUDA_F32, CKPT_CUDA_E4M3},
    {CKPT_CUDA_F32, CKPT_CUDA_E5M2},
    {CKPT_CUDA_F32, CKPT_CUDA_F64},
    {CKPT_CUDA_F64, CKPT_CUDA_F32},
    {CKPT_CUDA_BF16, CKPT_CUDA_F32},
    {CKPT_CUDA_BF16, CKPT_CUDA_F16},
    {CKPT_CUDA_BF16, CKPT_CUDA_E4M3},
    {CKPT_CUDA_F16, CKPT_CUDA_F32},
    {CKPT_CUDA_F16, CKPT_CUDA_BF16},
    {CKPT_CUDA_E4M3, CKPT_CUDA_BF16},
    {CKPT_CUDA_E4M3, CKPT_CUDA_F32},
    {CKPT_CUDA_E5M2, CKPT_CUDA_BF16},
};
inline constexpr uint32_t kPairCount = sizeof(kPairs) / sizeof(Pair);

// Throws std::invalid_argument for work that this program would not request.
Batch make_batch(const CkptCudaWork& work);

// The digest's table, for the device.
DigestTable make_table();

}  // namespace ckpt::cuda
