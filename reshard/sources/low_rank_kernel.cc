// SPDX-License-Identifier: Apache-2.0
// The product of an adapter's factors, once per instruction set. All give the
// same bits: each element is summed separately, in the order of the rank, and
// fma rounds once whether an instruction or a library does it.
#include <algorithm>
#include <cmath>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "lib/cpu.h"
#include "reshard/sources/low_rank.h"

namespace ckpt::reshard {
namespace {

// Columns summed together; they fit into the registers.
constexpr uint64_t kStrip = 64;

template <uint64_t width>
[[gnu::always_inline]] inline void strip(const float* left, const float* right,
                                         uint64_t rank, uint64_t columns,
                                         uint64_t count, float* out) {
  float sum[width] = {};
  const uint64_t n = width == kStrip ? width : count;
  for (uint64_t k = 0; k < rank; ++k)
    for (uint64_t j = 0; j < n; ++j)
      sum[j] = std::fmaf(left[k], right[k * columns + j], sum[j]);
  for (uint64_t j = 0; j < n; ++j) out[j] = sum[j];
}

[[gnu::always_inline]] inline void product(const float* left,
                                           const float* right, uint64_t rows,
                                           uint64_t rank, uint64_t columns,
                                           float* out) {
  uint64_t c = 0;
  for (; c + kStrip <= columns; c += kStrip)
    for (uint64_t r = 0; r < rows; ++r)
      strip<kStrip>(left + r * rank, right + c, rank, columns, kStrip,
                    out + r * columns + c);
  if (c == columns) return;
  for (uint64_t r = 0; r < rows; ++r)
    strip<kStrip - 1>(left + r * rank, right + c, rank, columns, columns - c,
                      out + r * columns + c);
}

using Product = void (*)(const float*, const float*, uint64_t, uint64_t,
                         uint64_t, float*);

void product_portable(const float* left, const float* right, uint64_t rows,
                      uint64_t rank, uint64_t columns, float* out) {
  product(left, right, rows, rank, columns, out);
}

// Compilers leave the sums of a strip in memory; these functions keep them in
// registers, which is several times as fast. The rest of a row takes the plain
// way.
#if defined(__x86_64__)

[[gnu::target("avx2,fma")]] void strip_avx2(const float* left,
                                            const float* right, uint64_t rank,
                                            uint64_t columns, float* out) {
  __m256 sum[8];
  for (__m256& part : sum) part = _mm256_setzero_ps();
  for (uint64_t k = 0; k < rank; ++k) {
    const __m256 factor = _mm256_set1_ps(left[k]);
    const float* row = right + k * columns;
    for (int i = 0; i < 8; ++i)
      sum[i] = _mm256_fmadd_ps(factor, _mm256_loadu_ps(row + 8 * i), sum[i]);
  }
  for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + 8 * i, sum[i]);
}

[[gnu::target("avx512f")]] void strip_avx512(const float* left,
                                             const float* right, uint64_t rank,
                                             uint64_t columns, float* out) {
  __m512 sum[4];
  for (__m512& part : sum) part = _mm512_setzero_ps();
  for (uint64_t k = 0; k < rank; ++k) {
    const __m512 factor = _mm512_set1_ps(left[k]);
    const float* row = right + k * columns;
    for (int i = 0; i < 4; ++i)
      sum[i] = _mm512_fmadd_ps(factor, _mm512_loadu_ps(row + 16 * i), sum[i]);
  }
  for (int i = 0; i < 4; ++i) _mm512_storeu_ps(out + 16 * i, sum[i]);
}

#elif defined(__aarch64__)

void strip_neon(const float* left, const float* right, uint64_t rank,
                uint64_t columns, float* out) {
  float32x4_t sum[16];
  for (float32x4_t& part : sum) part = vdupq_n_f32(0);
  for (uint64_t k = 0; k < rank; ++k) {
    const float* row = right + k * columns;
    for (int i = 0; i < 16; ++i)
      sum[i] = vfmaq_n_f32(sum[i], vld1q_f32(row + 4 * i), left[k]);
  }
  for (int i = 0; i < 16; ++i) vst1q_f32(out + 4 * i, sum[i]);
}

#endif

#if defined(__x86_64__) || defined(__aarch64__)
template <auto whole_strip>
void product_by(const float* left, const float* right, uint64_t rows,
                uint64_t rank, uint64_t columns, float* out) {
  // Packed side by side: rows of a wide matrix push each other out of the
  // cache.
  std::vector<float> packed(rank * kStrip);
  uint64_t c = 0;
  for (; c + kStrip <= columns; c += kStrip) {
    for (uint64_t k = 0; k < rank; ++k)
      std::copy_n(right + k * columns + c, kStrip, packed.data() + k * kStrip);
    for (uint64_t r = 0; r < rows; ++r)
      whole_strip(left + r * rank, packed.data(), rank, kStrip,
                  out + r * columns + c);
  }
  if (c == columns) return;
  for (uint64_t r = 0; r < rows; ++r)
    strip<kStrip - 1>(left + r * rank, right + c, rank, columns, columns - c,
                      out + r * columns + c);
}

#endif

Product best_product() {
#if defined(__x86_64__)
  if (!cpu_features().fma) return product_portable;
  if (cpu_features().avx512f) return product_by<strip_avx512>;
  if (cpu_features().avx2) return product_by<strip_avx2>;
#elif defined(__aarch64__)
  return product_by<strip_neon>;
#endif
  return product_portable;
}

}  // namespace

void multiply(const float* left, const float* right, uint64_t rows,
              uint64_t rank, uint64_t columns, float* out) {
  static const Product best = best_product();
  best(left, right, rows, rank, columns, out);
}

}  // namespace ckpt::reshard
