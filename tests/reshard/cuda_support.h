// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the CUDA module. They run twice: with
// CKPT_CUDA_HOST=1, where loops on the host stand in for the GPU
// (reshard/cuda/abi.h), and without, on a machine that has one.
#pragma once

#include <cstddef>
#include <vector>

#include "reshard/cuda/load.h"
#include "tests/support/random_catalog.h"

namespace ckpt::test {

using Bytes = std::vector<std::byte>;

// Null, with the reason reported, where the device can't be used.
const reshard::CudaModule* device();

Bytes noise(Random& random, size_t count);

// A ring of one slot, used for one piece of work after the other.
class OneSlot {
 public:
  // `bytes`: the most that is copied in or out.
  OneSlot(const reshard::CudaModule& module, uint64_t bytes)
      : module_(module), bytes_(bytes), ring_(module, 1, bytes) {}

  // Returns the target of the work; `sums`, if wanted, gets the digests' sums.
  Bytes run(const Bytes& in, uint64_t out_bytes,
            const std::vector<CkptCudaCopy>& copies,
            const std::vector<CkptCudaDigest>& digests = {},
            std::vector<CkptCudaSum>* sums = nullptr);

 private:
  const reshard::CudaModule& module_;
  uint64_t bytes_;
  reshard::CudaRing ring_;
};

}  // namespace ckpt::test
