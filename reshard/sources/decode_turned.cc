// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources/decode_turned.h"

#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>

#include "reshard/numbers/cast_kernel.h"
#endif

namespace ckpt::reshard {
namespace {

#if defined(__x86_64__)
#define CKPT_AVX2 [[gnu::target("avx2")]]
#define CKPT_AVX2_INLINE [[gnu::target("avx2"), gnu::always_inline]] inline

CKPT_AVX2_INLINE __m128i load(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
CKPT_AVX2_INLINE void store(std::byte* to, __m128i value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
}
CKPT_AVX2_INLINE void store(std::byte* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}
CKPT_AVX2_INLINE __m256i both(__m128i low, __m128i high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

// 4 x 4 words.
CKPT_AVX2_INLINE void turn_words(__m128i* x) {
  const __m128i ab = _mm_unpacklo_epi32(x[0], x[1]);
  const __m128i cd = _mm_unpacklo_epi32(x[2], x[3]);
  const __m128i ab2 = _mm_unpackhi_epi32(x[0], x[1]);
  const __m128i cd2 = _mm_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm_unpacklo_epi64(ab, cd);
  x[1] = _mm_unpackhi_epi64(ab, cd);
  x[2] = _mm_unpacklo_epi64(ab2, cd2);
  x[3] = _mm_unpackhi_epi64(ab2, cd2);
}
CKPT_AVX2_INLINE void turn_words(__m256i* x) {
  const __m256i ab = _mm256_unpacklo_epi32(x[0], x[1]);
  const __m256i cd = _mm256_unpacklo_epi32(x[2], x[3]);
  const __m256i ab2 = _mm256_unpackhi_epi32(x[0], x[1]);
  const __m256i cd2 = _mm256_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm256_unpacklo_epi64(ab, cd);
  x[1] = _mm256_unpackhi_epi64(ab, cd);
  x[2] = _mm256_unpacklo_epi64(ab2, cd2);
  x[3] = _mm256_unpackhi_epi64(ab2, cd2);
}

CKPT_AVX2 void split(std::byte* tables, uint64_t columns) {
  const __m256i apart =
      _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0,
                       2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  for (uint64_t c = 0; c < columns; ++c) {
    std::byte* at = tables + c * kTableBytes;
    const __m256i table =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    store(at, _mm256_permute4x64_epi64(_mm256_shuffle_epi8(table, apart),
                                       0b11011000));
  }
}

CKPT_AVX2 void gptq(const Turned& part, const std::byte* tables) {
  const __m128i mask = _mm_set1_epi8(15);
  for (uint64_t c = 0; c < part.columns; c += 4) {
    __m128i words[4];
    for (uint64_t i = 0; i < 4; ++i)
      words[i] = load(part.codes + i * part.stride + c * 4);
    turn_words(words);  // for one column: its 32 codes
    for (uint64_t k = 0; k < 4; ++k) {
      const std::byte* table = tables + (c + k) * kTableBytes;
      const __m128i low_bytes = load(table);
      const __m128i high_bytes = load(table + 16);
      const __m128i even = _mm_and_si128(words[k], mask);
      const __m128i odd = _mm_and_si128(_mm_srli_epi16(words[k], 4), mask);
      std::byte* to = part.out + (c + k) * part.by_column;
      const __m128i codes[2] = {_mm_unpacklo_epi8(even, odd),
                                _mm_unpackhi_epi8(even, odd)};
      for (const __m128i& code : codes) {
        const __m128i low = _mm_shuffle_epi8(low_bytes, code);
        const __m128i high = _mm_shuffle_epi8(high_bytes, code);
        store(to, _mm_unpacklo_epi8(low, high));
        store(to + 16, _mm_unpackhi_epi8(low, high));
        to += 32;
      }
    }
  }
}

// Codes of rows 0 to 15 and 16 to 31 ─► elements 0 to 15 and 16 to 31.
struct Pair {
  __m256i first, second;
};
CKPT_AVX2_INLINE Pair look_up(__m256i low_bytes, __m256i high_bytes,
                              __m256i codes) {
  const __m256i low = _mm256_shuffle_epi8(low_bytes, codes);
  const __m256i high = _mm256_shuffle_epi8(high_bytes, codes);
  const __m256i a = _mm256_unpacklo_epi8(low, high);
  const __m256i b = _mm256_unpackhi_epi8(low, high);
  return {_mm256_permute2x128_si256(a, b, 0x20),
          _mm256_permute2x128_si256(a, b, 0x31)};
}

CKPT_AVX2 void awq(const Turned& part, const std::byte* tables) {
  // For byte i of a word: the columns of its lower and its upper half.
  constexpr uint64_t kColumns[4][2] = {{0, 2}, {4, 6}, {1, 3}, {5, 7}};
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i by_byte =
      _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0,
                       4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (uint64_t c = 0; c < part.columns; c += 32) {
    __m128i words[8][4];  // four rows of each of four words
    for (uint64_t i = 0; i < kTurnedRows; ++i)
      words[i / 4][i % 4] = load(part.codes + i * part.stride + c / 2);
    for (auto& four : words) turn_words(four);
    for (uint64_t w = 0; w < 4; ++w) {
      __m256i bytes[4];
      for (uint64_t i = 0; i < 4; ++i)
        bytes[i] =
            _mm256_shuffle_epi8(both(words[i][w], words[i + 4][w]), by_byte);
      turn_words(bytes);
      for (uint64_t i = 0; i < 4; ++i)
        for (uint64_t half = 0; half < 2; ++half) {
          const uint64_t column = c + 8 * w + kColumns[i][half];
          const std::byte* table = tables + column * kTableBytes;
          const __m256i codes = _mm256_and_si256(
              half ? _mm256_srli_epi16(bytes[i], 4) : bytes[i], mask);
          const Pair made =
              look_up(_mm256_broadcastsi128_si256(load(table)),
                      _mm256_broadcastsi128_si256(load(table + 16)), codes);
          std::byte* to = part.out + column * part.by_column;
          store(to, made.first);
          store(to + 32, made.second);
        }
    }
  }
}

// 16 x 16 bytes, in each half of the registers.
CKPT_AVX2_INLINE void turn_bytes(__m256i* x) {
  __m256i y[16];
  for (int i = 0; i < 8; ++i) {
    y[2 * i] = _mm256_unpacklo_epi8(x[i], x[i + 8]);
    y[2 * i + 1] = _mm256_unpackhi_epi8(x[i], x[i + 8]);
  }
  for (int i = 0; i < 8; ++i) {
    x[2 * i] = _mm256_unpacklo_epi8(y[i], y[i + 8]);
    x[2 * i + 1] = _mm256_unpackhi_epi8(y[i], y[i + 8]);
  }
  for (int i = 0; i < 8; ++i) {
    y[2 * i] = _mm256_unpacklo_epi8(x[i], x[i + 8]);
    y[2 * i + 1] = _mm256_unpackhi_epi8(x[i], x[i + 8]);
  }
  for (int i = 0; i < 8; ++i) {
    x[2 * i] = _mm256_unpacklo_epi8(y[i], y[i + 8]);
    x[2 * i + 1] = _mm256_unpackhi_epi8(y[i], y[i + 8]);
  }
}

// A zero has no exponent to which a power could be added.
CKPT_AVX2_INLINE __m256i times(__m256i numbers, __m256i powers) {
  const __m256i size = _mm256_and_si256(numbers, _mm256_set1_epi16(0x7FFF));
  const __m256i zero = _mm256_cmpeq_epi16(size, _mm256_setzero_si256());
  return _mm256_add_epi16(numbers, _mm256_andnot_si256(zero, powers));
}

CKPT_AVX2 void e2m1(const Turned& part, const int16_t* powers) {
  const __m256i mask = _mm256_set1_epi8(15);
  // bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
  const __m256i low_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
  const __m256i high_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0, 63, 63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64));
  for (uint64_t c = 0; c < part.columns; c += 32) {
    __m256i bytes[16];
    for (uint64_t i = 0; i < 16; ++i) {
      const std::byte* from = part.codes + i * part.stride + c / 2;
      bytes[i] = both(load(from), load(from + 16 * part.stride));
    }
    turn_bytes(bytes);
    const auto* power = reinterpret_cast<const __m256i*>(powers + c);
    const __m256i first = _mm256_loadu_si256(power);
    const __m256i second = _mm256_loadu_si256(power + 1);
    for (uint64_t i = 0; i < 32; ++i) {
      const __m256i codes = _mm256_and_si256(
          i % 2 ? _mm256_srli_epi16(bytes[i / 2], 4) : bytes[i / 2], mask);
      const Pair made = look_up(low_bytes, high_bytes, codes);
      std::byte* to = part.out + (c + i) * part.by_column;
      store(to, times(made.first, first));
      store(to + 32, times(made.second, second));
    }
  }
}

// With 512 bits, a column's 32 elements are one register, and a lookup is one
// permutation of words. It uses five bits of each index. The fifth belongs to
// another code, so the register holds the table twice and that bit does not
// matter.
#define CKPT_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]
#define CKPT_AVX512_INLINE                             \
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"), \
    gnu::always_inline]] inline

// gcc 12 warns about an uninitialized operand in the unmasked intrinsics.
constexpr __mmask16 kAll = 0xFFFF;

void keep_whole(std::byte*, uint64_t) {}

CKPT_AVX512_INLINE void store(std::byte* to, __m512i value) {
  _mm512_storeu_si512(to, value);
}
CKPT_AVX512_INLINE __m512i table_at(const std::byte* table) {
  return _mm512_maskz_broadcast_i64x4(
      0xFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table)));
}

CKPT_AVX512 void gptq_wide(const Turned& part, const std::byte* tables) {
  for (uint64_t c = 0; c < part.columns; c += 4) {
    __m128i words[4];
    for (uint64_t i = 0; i < 4; ++i)
      words[i] = load(part.codes + i * part.stride + c * 4);
    turn_words(words);  // for one column: its 32 codes
    for (uint64_t k = 0; k < 4; ++k) {
      // A byte's lower code in the lower word, its upper one in the upper.
      const __m512i bytes = _mm512_maskz_cvtepu8_epi32(kAll, words[k]);
      const __m512i codes =
          _mm512_or_si512(bytes, _mm512_maskz_slli_epi32(kAll, bytes, 12));
      store(part.out + (c + k) * part.by_column,
            _mm512_permutexvar_epi16(codes,
                                     table_at(tables + (c + k) * kTableBytes)));
    }
  }
}

CKPT_AVX512 void awq_wide(const Turned& part, const std::byte* tables) {
  constexpr uint64_t kColumns[4][2] = {{0, 2}, {4, 6}, {1, 3}, {5, 7}};
  const __m256i by_byte =
      _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0,
                       4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (uint64_t c = 0; c < part.columns; c += 32) {
    __m256i words[4][4];  // rows 0 to 15 in the lower halves
    for (uint64_t i = 0; i < 16; ++i) {
      const std::byte* from = part.codes + i * part.stride + c / 2;
      words[i / 4][i % 4] = both(load(from), load(from + 16 * part.stride));
    }
    for (auto& four : words) turn_words(four);
    for (uint64_t w = 0; w < 4; ++w) {
      __m256i bytes[4];
      for (uint64_t i = 0; i < 4; ++i)
        bytes[i] = _mm256_shuffle_epi8(words[i][w], by_byte);
      turn_words(bytes);
      for (uint64_t i = 0; i < 4; ++i) {
        const __m512i lower = _mm512_cvtepu8_epi16(bytes[i]);
        const __m512i codes[2] = {lower, _mm512_srli_epi16(lower, 4)};
        for (uint64_t half = 0; half < 2; ++half) {
          const uint64_t column = c + 8 * w + kColumns[i][half];
          store(part.out + column * part.by_column,
                _mm512_permutexvar_epi16(
                    codes[half], table_at(tables + column * kTableBytes)));
        }
      }
    }
  }
}

CKPT_AVX512 void e2m1_wide(const Turned& part, const int16_t* powers) {
  alignas(32) constexpr uint16_t kBf16[16] = {
      0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,
      0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};
  const __m512i table = table_at(reinterpret_cast<const std::byte*>(kBf16));
  const __m512i size = _mm512_set1_epi16(0x7FFF);
  for (uint64_t c = 0; c < part.columns; c += 32) {
    __m256i bytes[16];
    for (uint64_t i = 0; i < 16; ++i) {
      const std::byte* from = part.codes + i * part.stride + c / 2;
      bytes[i] = both(load(from), load(from + 16 * part.stride));
    }
    turn_bytes(bytes);
    const __m512i power = _mm512_loadu_si512(powers + c);
    for (uint64_t i = 0; i < 16; ++i) {
      const __m512i lower = _mm512_cvtepu8_epi16(bytes[i]);
      const __m512i codes[2] = {lower, _mm512_srli_epi16(lower, 4)};
      for (uint64_t half = 0; half < 2; ++half) {
        const __m512i number = _mm512_permutexvar_epi16(codes[half], table);
        // A zero has no exponent to which a power could be added.
        store(part.out + (c + 2 * i + half) * part.by_column,
              _mm512_mask_add_epi16(
                  number, _mm512_test_epi16_mask(number, size), number, power));
      }
    }
  }
}

#undef CKPT_AVX512
#undef CKPT_AVX512_INLINE
#undef CKPT_AVX2
#undef CKPT_AVX2_INLINE
#endif

#if !defined(__aarch64__)
std::vector<TurnedKernel> find_turned_kernels() {
  std::vector<TurnedKernel> kernels;
#if defined(__x86_64__)
  for (const CastKernel& cast : usable_cast_kernels()) {
    if (cast.name == "avx2")
      kernels.push_back({cast.name, split, gptq, awq, e2m1});
    if (cast.name == "avx512")
      kernels.push_back(
          {cast.name, keep_whole, gptq_wide, awq_wide, e2m1_wide});
  }
#endif
  return kernels;
}
#endif

}  // namespace

#if !defined(__aarch64__)  // in decode_turned_neon.cc
std::span<const TurnedKernel> usable_turned_kernels() {
  static const std::vector<TurnedKernel> kernels = find_turned_kernels();
  return kernels;
}
#endif

const TurnedKernel* turned_kernel() {
  const auto kernels = usable_turned_kernels();
  return kernels.empty() ? nullptr : &kernels.back();
}

}  // namespace ckpt::reshard
