// SPDX-License-Identifier: Apache-2.0
// The interface of libckpt_torch.so: everything that needs libtorch. Plain C,
// so that the module may be built by another compiler than the program.
//
// Element types have torch's names ("bfloat16"), which dtype() turns into the
// module's own numbers. Pointers may have any alignment. All functions may be
// called from many threads; none starts a thread.
#pragma once

#include <stdint.h>

// Incremented with every change below.
#define CKPT_TORCH_ABI 4u

extern "C" {

struct CkptTorchApi {
  uint32_t abi;               // CKPT_TORCH_ABI
  const char* torch_version;  // "2.13.0"

  // The number of a type that can be cast, or -1.
  int32_t (*dtype)(const char* torch_name);

  // out[i] = in[i].to(to), rounded as PyTorch rounds on the CPU. The ranges
  // must not overlap. Returns zero; if not, error() says what went wrong in
  // this thread.
  int32_t (*cast)(int32_t from, int32_t to, const void* in, void* out,
                  uint64_t count);
  const char* (*error)();

  // The product of `left` [rows, rank] and `right` [rank, columns], of type
  // `to`, that is nearest to a matrix of float32, row-major: its singular
  // vectors, each scaled by the root of its value. All of them are computed
  // where the matrix is small, else as torch.svd_lowrank does, from the same
  // seed each time. norms: of what is left, and of the matrix. Uses `threads`;
  // one call at a time.
  int32_t (*low_rank)(const float* matrix, uint64_t rows, uint64_t columns,
                      uint64_t rank, int32_t to, void* left, void* right,
                      double norms[2], uint32_t threads);

  // All singular values of a matrix of float32, row-major, from the largest on:
  // as many as it has rows or columns, whichever are fewer. Uses `threads`; one
  // call at a time.
  int32_t (*singular_values)(const float* matrix, uint64_t rows,
                             uint64_t columns, float* values, uint32_t threads);
};

// The only exported symbol.
#define CKPT_TORCH_ENTRY "ckpt_torch_api"
typedef const CkptTorchApi* (*CkptTorchEntry)();

}  // extern "C"
