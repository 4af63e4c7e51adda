// SPDX-License-Identifier: Apache-2.0
#include "lib/hash/digest_kernel.h"

#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "lib/cpu.h"

namespace ckpt::digest_detail {
namespace {

void portable(const Tables& tables, size_t i, const std::byte* words, size_t n,
              Sums& sums) {
  const uint32_t* t0 = tables.t[0] + i;
  const uint32_t* t1 = tables.t[1] + i;
  uint64_t s0 = 0;
  uint64_t s1 = 0;
  for (size_t k = 0; k < n; ++k) {
    uint32_t word;
    std::memcpy(&word, words + 4 * k, 4);
    s0 += uint64_t{word} * t0[k];
    s1 += uint64_t{word} * t1[k];
  }
  sums.s0 += s0;
  sums.s1 += s1;
}

#if defined(__x86_64__)

// The 32x32->64 multiplication takes the even lanes. For the odd ones, shift
// the words down and use the next word's table.

[[gnu::target("avx2")]] uint64_t sum_lanes(__m256i v) {
  const __m128i half =
      _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(half)) +
         static_cast<uint64_t>(_mm_extract_epi64(half, 1));
}

[[gnu::target("avx2")]] inline __m256i load256(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

[[gnu::target("avx2")]] void avx2(const Tables& tables, size_t i,
                                  const std::byte* words, size_t n,
                                  Sums& sums) {
  const uint32_t* t0 = tables.t[0] + i;
  const uint32_t* t1 = tables.t[1] + i;
  const uint32_t* next0 = tables.next[0] + i;
  const uint32_t* next1 = tables.next[1] + i;
  __m256i even0 = _mm256_setzero_si256();
  __m256i odd0 = even0;
  __m256i even1 = even0;
  __m256i odd1 = even0;
  size_t k = 0;
  for (; k + 8 <= n; k += 8) {
    const __m256i even = load256(words + 4 * k);
    const __m256i odd = _mm256_srli_epi64(even, 32);
    even0 = _mm256_add_epi64(even0, _mm256_mul_epu32(even, load256(t0 + k)));
    odd0 = _mm256_add_epi64(odd0, _mm256_mul_epu32(odd, load256(next0 + k)));
    even1 = _mm256_add_epi64(even1, _mm256_mul_epu32(even, load256(t1 + k)));
    odd1 = _mm256_add_epi64(odd1, _mm256_mul_epu32(odd, load256(next1 + k)));
  }
  sums.s0 += sum_lanes(_mm256_add_epi64(even0, odd0));
  sums.s1 += sum_lanes(_mm256_add_epi64(even1, odd1));
  if (k < n) portable(tables, i + k, words + 4 * k, n - k, sums);
}

struct Sums512 {
  __m512i even;
  __m512i odd;
};

// The forms with an all-ones mask compile to the plain instructions; with gcc
// 12 the plain intrinsics warn of an uninitialized operand.
[[gnu::target("avx512f"), gnu::always_inline]] inline void add512(
    Sums512& sums, __m512i even, __m512i odd, const uint32_t* t,
    const uint32_t* next) {
  const __m512i p = _mm512_maskz_mul_epu32(0xFF, even, _mm512_loadu_si512(t));
  const __m512i q = _mm512_maskz_mul_epu32(0xFF, odd, _mm512_loadu_si512(next));
  sums.even = _mm512_add_epi64(sums.even, p);
  sums.odd = _mm512_add_epi64(sums.odd, q);
}

[[gnu::target("avx512f")]] uint64_t sum_lanes(const Sums512& sums) {
  uint64_t lanes[8];
  _mm512_storeu_si512(lanes, _mm512_add_epi64(sums.even, sums.odd));
  uint64_t sum = 0;
  for (const uint64_t lane : lanes) sum += lane;
  return sum;
}

// Bound by its multiplications: four per 64 bytes, one at a time.
[[gnu::target("avx512f")]] void avx512(const Tables& tables, size_t i,
                                       const std::byte* words, size_t n,
                                       Sums& sums) {
  Sums512 sums0 = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  Sums512 sums1 = sums0;
  const auto add = [&](size_t k, __m512i even)
      __attribute__((target("avx512f"), always_inline)) {
    const __m512i odd = _mm512_maskz_srli_epi64(0xFF, even, 32);
    add512(sums0, even, odd, tables.t[0] + i + k, tables.next[0] + i + k);
    add512(sums1, even, odd, tables.t[1] + i + k, tables.next[1] + i + k);
  };
  size_t k = 0;
  for (; k + 32 <= n; k += 32) {
    add(k, _mm512_loadu_si512(words + 4 * k));
    add(k + 16, _mm512_loadu_si512(words + 4 * k + 64));
  }
  for (; k < n; k += 16) {
    // Lanes beyond n are zero, so what the table holds there doesn't count.
    const auto mask =
        static_cast<__mmask16>(n - k >= 16 ? 0xFFFFu : (1u << (n - k)) - 1);
    add(k, _mm512_maskz_loadu_epi32(mask, words + 4 * k));
  }
  sums.s0 += sum_lanes(sums0);
  sums.s1 += sum_lanes(sums1);
}

#elif defined(__aarch64__)

// Multiplication takes the lower or the upper two lanes and accumulates. Two
// sums of each: one alone would wait for the last addition to it.
struct SumsNeon {
  uint64x2_t low = vdupq_n_u64(0);
  uint64x2_t high = vdupq_n_u64(0);
  void add(uint32x4_t words, const uint32_t* table) {
    const uint32x4_t t = vld1q_u32(table);
    low = vmlal_u32(low, vget_low_u32(words), vget_low_u32(t));
    high = vmlal_high_u32(high, words, t);
  }
  uint64_t sum() const { return vaddvq_u64(vaddq_u64(low, high)); }
};

void neon(const Tables& tables, size_t i, const std::byte* words, size_t n,
          Sums& sums) {
  const uint32_t* t0 = tables.t[0] + i;
  const uint32_t* t1 = tables.t[1] + i;
  SumsNeon sums0[2], sums1[2];
  size_t k = 0;
  for (; k + 8 <= n; k += 8)
    for (size_t part = 0; part < 2; ++part) {
      const size_t at = k + 4 * part;
      const uint32x4_t four = vreinterpretq_u32_u8(
          vld1q_u8(reinterpret_cast<const uint8_t*>(words + 4 * at)));
      sums0[part].add(four, t0 + at);
      sums1[part].add(four, t1 + at);
    }
  sums.s0 += sums0[0].sum() + sums0[1].sum();
  sums.s1 += sums1[0].sum() + sums1[1].sum();
  portable(tables, i + k, words + 4 * k, n - k, sums);
}

#endif

std::vector<NamedKernel> find_kernels() {
  std::vector<NamedKernel> kernels = {{"portable", portable}};
#if defined(__x86_64__)
  if (cpu_features().avx2) kernels.push_back({"avx2", avx2});
  if (cpu_features().avx512f) kernels.push_back({"avx512", avx512});
#elif defined(__aarch64__)
  kernels.push_back({"neon", neon});
#endif
  return kernels;
}

}  // namespace

std::span<const NamedKernel> usable_kernels() {
  static const std::vector<NamedKernel> kernels = find_kernels();
  return kernels;
}

Kernel best_kernel() {
  static const Kernel best = usable_kernels().back().kernel;
  return best;
}

}  // namespace ckpt::digest_detail
