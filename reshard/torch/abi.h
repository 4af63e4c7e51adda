// SPDX-License-Identifier: Apache-2.0
// What libckpt_torch.so offers: everything that needs libtorch, behind plain C
// so that the module may be built by another compiler than the program.
//
// Element types go by torch's names ("bfloat16"), which dtype() turns into
// numbers of the module's own. Pointers may have any alignment. All functions
// may be called from many threads; no function starts a thread.
#pragma once

#include <stdint.h>

// Grows with every change of what is below.
#define CKPT_TORCH_ABI 1u

extern "C" {

// Of finite elements, as doubles; both parts of a complex number count as an
// element. Start with min = +inf, max = -inf, and zeros.
struct CkptTorchStats {
  double min;
  double max;
  double sum;
  double sum_of_squares;
  uint64_t count;  // of all elements
  uint64_t nans;
  uint64_t infs;
};

// a and b agree where |a - b| <= atol + rtol * |b|, where both are NaN, and
// where they are equal (infinities too). Start with zeros.
struct CkptTorchComparison {
  double max_abs;  // of |a - b|; inf if only one of them is finite
  double max_rel;  // of |a - b| / |b|; inf where b is zero and a is not
  uint64_t count;
  uint64_t mismatches;
  uint64_t first_mismatch;  // counted from the first call; if mismatches
};

struct CkptTorchApi {
  uint32_t abi;               // CKPT_TORCH_ABI
  const char* torch_version;  // "2.13.0"

  // The number of a type that can be cast, or -1.
  int32_t (*dtype)(const char* torch_name);

  // These return zero, or else error() says what went wrong in this thread.
  //
  // out[i] = in[i].to(to), rounded as PyTorch rounds on the CPU. The ranges
  // don't overlap.
  int32_t (*cast)(int32_t from, int32_t to, const void* in, void* out,
                  uint64_t count);
  // Both add to what is there.
  int32_t (*stats)(int32_t dtype, const void* in, uint64_t count,
                   CkptTorchStats* stats);
  int32_t (*compare)(int32_t dtype_a, const void* a, int32_t dtype_b,
                     const void* b, uint64_t count, double rtol, double atol,
                     CkptTorchComparison* comparison);
  const char* (*error)();
};

// The only symbol.
#define CKPT_TORCH_ENTRY "ckpt_torch_api"
typedef const CkptTorchApi* (*CkptTorchEntry)();

}  // extern "C"
