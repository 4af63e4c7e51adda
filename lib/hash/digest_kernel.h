// SPDX-License-Identifier: Apache-2.0
// The inner loop of the digest, once per instruction set:
//
//   s_a += word[k] * t_a[i + k]    k = 0 .. n-1,  i + n <= 1024
//
// All of them give the same numbers; the tests run each one that the processor
// supports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ckpt::digest_detail {

inline constexpr size_t kBlock = 1024;  // words

// Vector kernels load a vector's worth from t[a][i] and from t[a][i + 1]. The
// latter are stored again as next[a][i], since a load that crosses a cache line
// costs two.
struct Tables {
  alignas(64) uint32_t t[2][kBlock + 16];
  alignas(64) uint32_t next[2][kBlock + 16];
};

struct Sums {
  uint64_t s0 = 0;
  uint64_t s1 = 0;
};

using Kernel = void (*)(const Tables& tables, size_t i, const std::byte* words,
                        size_t n, Sums& sums);

struct NamedKernel {
  std::string_view name;
  Kernel kernel;
};

// The kernels that this processor can run, fastest last.
std::span<const NamedKernel> usable_kernels();
Kernel best_kernel();

}  // namespace ckpt::digest_detail
