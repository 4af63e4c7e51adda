// SPDX-License-Identifier: Apache-2.0
// A CUDA stream, for the files that call CUDA or NCCL themselves.
#pragma once

#include <cuda_runtime.h>

#include "reshard/cuda/device.h"

namespace ckpt::cuda {

struct Stream {
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
};

}  // namespace ckpt::cuda
