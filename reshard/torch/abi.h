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
#define CKPT_TORCH_ABI 2u

extern "C" {

struct CkptTorchApi {
  uint32_t abi;               // CKPT_TORCH_ABI
  const char* torch_version;  // "2.13.0"

  // The number of a type that can be cast, or -1.
  int32_t (*dtype)(const char* torch_name);

  // Returns zero, or else error() says what went wrong in this thread.
  // out[i] = in[i].to(to), rounded as PyTorch rounds on the CPU. The ranges
  // don't overlap.
  int32_t (*cast)(int32_t from, int32_t to, const void* in, void* out,
                  uint64_t count);
  const char* (*error)();
};

// The only symbol.
#define CKPT_TORCH_ENTRY "ckpt_torch_api"
typedef const CkptTorchApi* (*CkptTorchEntry)();

}  // extern "C"
