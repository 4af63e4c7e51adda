// SPDX-License-Identifier: Apache-2.0
// Lets the same lines compile for the host and for a GPU.
#pragma once

#ifndef __CUDA_ARCH__
#include <cstring>
#endif

#ifdef __CUDACC__
#define CKPT_HD __host__ __device__ __forceinline__
#else
#define CKPT_HD inline
#endif

namespace ckpt {

// The bits of a value as another type of the same size.
template <class To, class From>
CKPT_HD To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
#ifdef __CUDA_ARCH__
  memcpy(&to, &value, sizeof to);
#else
  std::memcpy(&to, &value, sizeof to);
#endif
  return to;
}

}  // namespace ckpt
