// SPDX-License-Identifier: Apache-2.0
// The vocabulary of kernels, so that the same lines compile for the device and,
// with loops for threads, for the host.
#pragma once

#include <cstddef>
#include <cstdint>
#ifndef __CUDA_ARCH__
#include <cstring>
#include <stdexcept>
#endif

#include "reshard/numbers/host_device.h"

#ifdef __CUDACC__
#define CKPT_UNROLL _Pragma("unroll")
#define CKPT_UNROLL_BY_4 _Pragma("unroll 4")
#else
#define CKPT_UNROLL
#define CKPT_UNROLL_BY_4
#endif

namespace ckpt::cuda {

inline constexpr uint32_t kThreads = 256;  // of a block, in every kernel
inline constexpr uint32_t kDims = 6;

struct alignas(16) Vec16 {
  uint32_t w[4];
};

#ifndef __CUDA_ARCH__
// A GPU stops at an address that is not a multiple of the size, and so does the
// host here.
template <class T>
inline void check_aligned(const std::byte* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0)
    throw std::logic_error("a kernel's access is not aligned");
}
#endif

// T at an address that is a multiple of its size.
template <class T>
CKPT_HD T load(const std::byte* at) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const T*>(at);
#else
  check_aligned<T>(at);
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
#endif
}
template <class T>
CKPT_HD void store(std::byte* at, const T& value) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<T*>(at) = value;
#else
  check_aligned<T>(at);
  std::memcpy(at, &value, sizeof value);
#endif
}
// Four words at once: the compiler must not split the access.
template <>
CKPT_HD Vec16 load<Vec16>(const std::byte* at) {
#ifdef __CUDA_ARCH__
  const uint4 v = *reinterpret_cast<const uint4*>(at);
  return {{v.x, v.y, v.z, v.w}};
#else
  check_aligned<Vec16>(at);
  Vec16 value;
  std::memcpy(&value, at, sizeof value);
  return value;
#endif
}
template <>
CKPT_HD void store<Vec16>(std::byte* at, const Vec16& value) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<uint4*>(at) =
      make_uint4(value.w[0], value.w[1], value.w[2], value.w[3]);
#else
  check_aligned<Vec16>(at);
  std::memcpy(at, &value, sizeof value);
#endif
}

// The low word of high:low, moved down by `bits` (0 to 31).
CKPT_HD uint32_t funnel_down(uint32_t low, uint32_t high, uint32_t bits) {
  return static_cast<uint32_t>(((uint64_t{high} << 32) | low) >> bits);
}

// Loads 16 bytes from any address, by combining the two aligned vectors that
// hold them. Reads up to 15 bytes before and after them; buffers have a margin.
CKPT_HD Vec16 load_any(const std::byte* base, uint64_t at) {
  const auto shift = static_cast<uint32_t>(at & 15);
  const std::byte* from = base + (at - shift);
  const Vec16 a = load<Vec16>(from);
  if (shift == 0) return a;
  const Vec16 b = load<Vec16>(from + 16);
  // Shifts by whole words in two steps, so that no index is a variable.
  uint32_t w[7] = {a.w[0], a.w[1], a.w[2], a.w[3], b.w[0], b.w[1], b.w[2]};
  uint32_t last = b.w[3];
  if (shift & 8) {
    w[0] = w[2], w[1] = w[3], w[2] = w[4], w[3] = w[5], w[4] = w[6];
    w[5] = last;
  }
  if (shift & 4) {
    w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = w[4], w[4] = w[5];
  }
  const uint32_t bits = (shift & 3) * 8;
  return {{funnel_down(w[0], w[1], bits), funnel_down(w[1], w[2], bits),
           funnel_down(w[2], w[3], bits), funnel_down(w[3], w[4], bits)}};
}

// n / d for n below 2^31 with one multiplication: a division costs a thread as
// much as copying ten vectors.
struct Divider {
  uint32_t divisor = 1;
  uint32_t factor = 0;
  uint32_t shift = 0;

  Divider() = default;
  explicit Divider(uint32_t d) : divisor(d) {
    while (shift < 31 && (uint32_t{1} << shift) < d) ++shift;
    factor = static_cast<uint32_t>(
        (uint64_t{1} << 32) * ((uint64_t{1} << shift) - d) / d + 1);
  }
  CKPT_HD uint32_t quotient(uint32_t n) const {
    const auto high =
        static_cast<uint32_t>((static_cast<uint64_t>(n) * factor) >> 32);
    return (high + n) >> shift;
  }
};

struct Step {
  Divider size;
  uint64_t in = 0;
  uint64_t out = 0;
};

// The position of index `n` of nested loops; the last dimension is the fastest.
struct Nest {
  uint32_t dims = 0;
  Step step[kDims];

  CKPT_HD void find(uint32_t n, uint64_t& in, uint64_t& out) const {
    for (uint32_t d = dims; d-- > 0;) {
      const uint32_t q = step[d].size.quotient(n);
      const uint32_t rest = n - q * step[d].size.divisor;
      in += rest * step[d].in;
      out += rest * step[d].out;
      n = q;
    }
  }
};

// The task that has a unit: the last one that begins at or before it.
template <class Task>
CKPT_HD const Task& task_of(const Task* tasks, uint32_t count, uint32_t unit) {
  uint32_t low = 0;
  while (count > 1) {
    const uint32_t half = count / 2;
    if (tasks[low + half].first_unit <= unit) {
      low += half;
      count -= half;
    } else {
      count = half;
    }
  }
  return tasks[low];
}

}  // namespace ckpt::cuda
