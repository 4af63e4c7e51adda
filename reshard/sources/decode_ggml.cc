// SPDX-License-Identifier: Apache-2.0
// From blocks to numbers. A function here says where the codes of a block are
// and which of them share a scale; each unpacks them into bytes first, since
// compilers make vector instructions of both steps.
//
// Products and sums have the order and the precision of the gguf package's:
// each rounds to f32.
#include "reshard/sources/decode_ggml.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "reshard/numbers/numbers.h"
#include "reshard/sources/ggml_grids.h"

namespace ckpt::reshard {
namespace {

using Byte = uint8_t;

uint32_t u16_at(const Byte* at) {
  return static_cast<uint32_t>(at[0] | at[1] << 8);
}
uint32_t u32_at(const Byte* at) { return u16_at(at) | u16_at(at + 2) << 16; }
float half(uint32_t bits) {
  return std::bit_cast<float>(numbers::f16_to_float(bits));
}
float half_at(const Byte* at) { return half(u16_at(at)); }

// The sign bits of eight codes from seven: they are an even number.
uint32_t even_signs(uint32_t seven) {
  return seven | static_cast<uint32_t>(std::popcount(seven) & 1) << 7;
}

// The types that differ in a table alone.
constexpr int8_t kIq4Values[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
// e2m1, twice as large. Minus zero is zero.
constexpr int8_t kE2m1Twice[] = {0, 1,  2,  3,  4,  6,  8,  12,
                                 0, -1, -2, -3, -4, -6, -8, -12};

template <int kCount>
void scaled(float scale, const int8_t* codes, float* out) {
  for (int i = 0; i < kCount; ++i)
    out[i] = scale * static_cast<float>(codes[i]);
}

// Adds to the products of a scale. What is a NaN already stays as it is: of two
// NaNs, compilers choose which one a sum keeps.
void plus(float least, float scale, float* out) {
  if (std::isfinite(scale)) {
    for (int i = 0; i < 32; ++i) out[i] += least;
    return;
  }
  for (int i = 0; i < 32; ++i)
    if (!std::isnan(out[i])) out[i] += least;
}

// Halves of bytes: all lower ones, then all upper ones.
template <int kBytes>
void halves_of(const Byte* in, int8_t* codes) {
  for (int i = 0; i < kBytes; ++i) {
    codes[i] = static_cast<int8_t>(in[i] & 15);
    codes[kBytes + i] = static_cast<int8_t>(in[i] >> 4);
  }
}

// Two bits of each of 64 bytes in two runs of 32: the lowest of a run first.
void quarters_of(const Byte* in, int8_t* codes) {
  for (int run = 0; run < 2; ++run)
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 32; ++i)
        codes[128 * run + 32 * j + i] =
            static_cast<int8_t>(in[32 * run + i] >> 2 * j & 3);
}

void looked_up(const int8_t* table, int8_t* codes, int count) {
  for (int i = 0; i < count; ++i) codes[i] = table[codes[i]];
}

void less(int8_t by, int8_t* codes, int count) {
  for (int i = 0; i < count; ++i) codes[i] = static_cast<int8_t>(codes[i] - by);
}

// Bit i of `bits` becomes the fifth of code i.
void fifth_bits(uint32_t bits, int8_t* codes) {
  for (int i = 0; i < 32; ++i)
    codes[i] = static_cast<int8_t>(codes[i] | (bits >> i & 1) << 4);
}

void decode_q4_0(const Byte* in, float* out) {
  int8_t codes[32];
  halves_of<16>(in + 2, codes);
  less(8, codes, 32);
  scaled<32>(half_at(in), codes, out);
}

void decode_q4_1(const Byte* in, float* out) {
  int8_t codes[32];
  halves_of<16>(in + 4, codes);
  const float scale = half_at(in);
  scaled<32>(scale, codes, out);
  plus(half_at(in + 2), scale, out);
}

void decode_q5_0(const Byte* in, float* out) {
  int8_t codes[32];
  halves_of<16>(in + 6, codes);
  fifth_bits(u32_at(in + 2), codes);
  less(16, codes, 32);
  scaled<32>(half_at(in), codes, out);
}

void decode_q5_1(const Byte* in, float* out) {
  int8_t codes[32];
  halves_of<16>(in + 8, codes);
  fifth_bits(u32_at(in + 4), codes);
  const float scale = half_at(in);
  scaled<32>(scale, codes, out);
  plus(half_at(in + 2), scale, out);
}

void decode_q8_0(const Byte* in, float* out) {
  int8_t codes[32];
  std::memcpy(codes, in + 2, sizeof codes);
  scaled<32>(half_at(in), codes, out);
}

void decode_q1_0(const Byte* in, float* out) {
  const float scale = half_at(in);
  for (int i = 0; i < 128; ++i)
    out[i] = (in[2 + i / 8] >> i % 8 & 1) != 0 ? scale : -scale;
}

void decode_q2_0(const Byte* in, float* out) {
  const float scale = half_at(in);
  for (int i = 0; i < 64; ++i)
    out[i] = static_cast<float>((in[2 + i / 4] >> 2 * (i % 4) & 3) - 1) * scale;
}

void decode_q2_k(const Byte* in, float* out) {
  int8_t codes[256];
  quarters_of(in + 16, codes);
  const float by = half_at(in + 80), less_by = half_at(in + 82);
  for (int g = 0; g < 16; ++g) {
    const float least = less_by * static_cast<float>(in[g] >> 4);
    scaled<16>(by * static_cast<float>(in[g] & 15), codes + 16 * g,
               out + 16 * g);
    for (int i = 0; i < 16; ++i) out[16 * g + i] -= least;
  }
}

void decode_q3_k(const Byte* in, float* out) {
  int8_t codes[256];
  quarters_of(in + 32, codes);
  // A bit that is not set takes four away.
  for (int j = 0; j < 8; ++j)
    for (int i = 0; i < 32; ++i)
      codes[32 * j + i] =
          static_cast<int8_t>(codes[32 * j + i] - ((~in[i] >> j & 1) << 2));
  const Byte* scales = in + 96;
  const float by = half_at(in + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = scales[g % 8] >> 4 * (g / 8) & 15;
    const int high = scales[8 + g % 4] >> 2 * (g / 4) & 3;
    scaled<16>(by * static_cast<float>((low | high << 4) - 32), codes + 16 * g,
               out + 16 * g);
  }
}

// Q4_K and Q5_K: eight scales and eight minima of six bits each in 12 bytes.
// The last four of each have their upper two bits above those of the first.
struct SixBits {
  int scale, least;
};
SixBits six_bits(const Byte* packed, int group) {
  if (group < 4) return {packed[group] & 63, packed[4 + group] & 63};
  const Byte both = packed[4 + group];
  return {(both & 15) | (packed[group - 4] >> 2 & 48),
          both >> 4 | (packed[group] >> 2 & 48)};
}

// The part of Q4_K and Q5_K that follows their codes.
void scale_and_less(const Byte* in, const int8_t* codes, float* out) {
  const float by = half_at(in), less_by = half_at(in + 2);
  for (int g = 0; g < 8; ++g) {
    const SixBits six = six_bits(in + 4, g);
    const float least = less_by * static_cast<float>(six.least);
    scaled<32>(by * static_cast<float>(six.scale), codes + 32 * g,
               out + 32 * g);
    for (int i = 0; i < 32; ++i) out[32 * g + i] -= least;
  }
}

void decode_q4_k(const Byte* in, float* out) {
  int8_t codes[256];
  for (int run = 0; run < 4; ++run)
    halves_of<32>(in + 16 + 32 * run, codes + 64 * run);
  scale_and_less(in, codes, out);
}

void decode_q5_k(const Byte* in, float* out) {
  int8_t codes[256];
  const Byte* fifth = in + 16;
  for (int run = 0; run < 4; ++run)
    halves_of<32>(in + 48 + 32 * run, codes + 64 * run);
  for (int j = 0; j < 8; ++j)
    for (int i = 0; i < 32; ++i)
      codes[32 * j + i] =
          static_cast<int8_t>(codes[32 * j + i] | (fifth[i] >> j & 1) << 4);
  scale_and_less(in, codes, out);
}

void decode_q6_k(const Byte* in, float* out) {
  int8_t codes[256], upper[256];
  halves_of<64>(in, codes);
  halves_of<64>(in + 64, codes + 128);
  quarters_of(in + 128, upper);
  for (int i = 0; i < 256; ++i)
    codes[i] = static_cast<int8_t>((codes[i] | upper[i] << 4) - 32);
  const float by = half_at(in + 208);
  for (int g = 0; g < 16; ++g)
    scaled<16>(by * static_cast<float>(static_cast<int8_t>(in[192 + g])),
               codes + 16 * g, out + 16 * g);
}

// Five digits of base 3 to a byte, as a fraction of 256: the leading digit is
// what three times the byte carries over.
template <int kBytes, int kDigits>
void threes_of(const Byte* in, int8_t* codes) {
  int power = 1;
  for (int j = 0; j < kDigits; ++j, power *= 3)
    for (int i = 0; i < kBytes; ++i)
      codes[kBytes * j + i] =
          static_cast<int8_t>((static_cast<Byte>(in[i] * power) * 3 >> 8) - 1);
}

void decode_tq1_0(const Byte* in, float* out) {
  int8_t codes[256];
  threes_of<32, 5>(in, codes);
  threes_of<16, 5>(in + 32, codes + 160);
  threes_of<4, 4>(in + 48, codes + 240);
  scaled<256>(half_at(in + 52), codes, out);
}

void decode_tq2_0(const Byte* in, float* out) {
  int8_t codes[256];
  quarters_of(in, codes);
  less(1, codes, 256);
  scaled<256>(half_at(in + 64), codes, out);
}

void decode_mxfp4(const Byte* in, float* out) {
  int8_t codes[32];
  halves_of<16>(in + 1, codes);
  looked_up(kE2m1Twice, codes, 32);
  scaled<32>(ggml_e8m0_half(in[0]), codes, out);
}

// Half of an e4m3 without a sign. 0x7F is zero, and the upper bit is nothing.
float ue4m3_half(Byte code) {
  if (code == 0x7F) return 0;
  return std::bit_cast<float>(numbers::widen(code & 0x7F, 3, 7)) * 0.5F;
}

void decode_nvfp4(const Byte* in, float* out) {
  int8_t codes[64];
  for (int g = 0; g < 4; ++g) {
    halves_of<8>(in + 4 + 8 * g, codes + 16 * g);
    looked_up(kE2m1Twice, codes + 16 * g, 16);
    scaled<16>(ue4m3_half(in[g]), codes + 16 * g, out + 16 * g);
  }
}

void decode_iq4_nl(const Byte* in, float* out) {
  int8_t codes[32];
  halves_of<16>(in + 2, codes);
  looked_up(kIq4Values, codes, 32);
  scaled<32>(half_at(in), codes, out);
}

void decode_iq4_xs(const Byte* in, float* out) {
  int8_t codes[32];
  const float by = half_at(in);
  for (int g = 0; g < 8; ++g) {
    const uint32_t low = in[4 + g / 2] >> 4 * (g % 2) & 15;
    const uint32_t high = u16_at(in + 2) >> 2 * g & 3;
    halves_of<16>(in + 8 + 16 * g, codes);
    looked_up(kIq4Values, codes, 32);
    scaled<32>(by * static_cast<float>(static_cast<int>(low | high << 4) - 32),
               codes, out + 32 * g);
  }
}

// The IQ2's and IQ3's: coordinates of a point, some of them negated.
template <size_t kWidth>
void signed_point(const std::array<int8_t, kWidth>& point, uint32_t signs,
                  int8_t* codes) {
  for (size_t i = 0; i < kWidth; ++i)
    codes[i] =
        static_cast<int8_t>((signs >> i & 1) != 0 ? -point[i] : point[i]);
}

float between(float by, uint32_t scale, float times) {
  return by * (0.5F + static_cast<float>(scale)) * times;
}

void decode_iq2_xxs(const Byte* in, float* out) {
  int8_t codes[32];
  const float by = half_at(in);
  for (int g = 0; g < 8; ++g) {
    const Byte* points = in + 2 + 8 * g;
    const uint32_t rest = u32_at(points + 4);
    for (int i = 0; i < 4; ++i)
      signed_point(iq2_xxs_grid()[points[i]], even_signs(rest >> 7 * i & 127),
                   codes + 8 * i);
    scaled<32>(between(by, rest >> 28, 0.25F), codes, out + 32 * g);
  }
}

void decode_iq2_xs(const Byte* in, float* out) {
  int8_t codes[16];
  const float by = half_at(in);
  for (int g = 0; g < 16; ++g) {
    for (int i = 0; i < 2; ++i) {
      const uint32_t code = u16_at(in + 2 + 4 * g + 2 * i);
      signed_point(iq2_xs_grid()[code & 511], even_signs(code >> 9),
                   codes + 8 * i);
    }
    scaled<16>(between(by, in[66 + g / 2] >> 4 * (g % 2) & 15, 0.25F), codes,
               out + 16 * g);
  }
}

void decode_iq2_s(const Byte* in, float* out) {
  int8_t codes[16];
  const float by = half_at(in);
  for (int g = 0; g < 16; ++g) {
    for (int i = 0; i < 2; ++i) {
      const int p = 2 * g + i;
      const int upper = in[66 + p / 4] >> 2 * (p % 4) & 3;
      signed_point(iq2_s_grid()[static_cast<size_t>(in[2 + p] | upper << 8)],
                   in[34 + p], codes + 8 * i);
    }
    scaled<16>(between(by, in[74 + g / 2] >> 4 * (g % 2) & 15, 0.25F), codes,
               out + 16 * g);
  }
}

void decode_iq3_xxs(const Byte* in, float* out) {
  int8_t codes[32];
  const float by = half_at(in);
  for (int g = 0; g < 8; ++g) {
    const uint32_t rest = u32_at(in + 66 + 4 * g);
    for (int i = 0; i < 8; ++i)
      signed_point(iq3_xxs_grid()[in[2 + 8 * g + i]],
                   even_signs(rest >> 7 * (i / 2) & 127) >> 4 * (i % 2),
                   codes + 4 * i);
    scaled<32>(between(by, rest >> 28, 0.5F), codes, out + 32 * g);
  }
}

void decode_iq3_s(const Byte* in, float* out) {
  int8_t codes[32];
  const float by = half_at(in);
  for (int g = 0; g < 8; ++g) {
    for (int i = 0; i < 8; ++i) {
      const int ninth = in[66 + g] >> i & 1;
      signed_point(
          iq3_s_grid()[static_cast<size_t>(in[2 + 8 * g + i] | ninth << 8)],
          static_cast<uint32_t>(in[74 + 4 * g + i / 2] >> 4 * (i % 2)),
          codes + 4 * i);
    }
    const int scale = in[106 + g / 2] >> 4 * (g % 2) & 15;
    scaled<32>(by * static_cast<float>(1 + 2 * scale), codes, out + 32 * g);
  }
}

// The IQ1's: a point, all of its coordinates moved by an eighth.
void moved_point(float scale, uint32_t point, bool down, float* out) {
  for (int i = 0; i < 8; ++i)
    out[i] =
        scale * (static_cast<float>(iq1_grid()[point][static_cast<size_t>(i)]) +
                 (down ? -0.125F : 0.125F));
}

void decode_iq1_s(const Byte* in, float* out) {
  const float by = half_at(in);
  for (int g = 0; g < 8; ++g) {
    const uint32_t upper = u16_at(in + 34 + 2 * g);
    const float scale = by * static_cast<float>(2 * (upper >> 12 & 7) + 1);
    for (int i = 0; i < 4; ++i)
      moved_point(scale, in[2 + 4 * g + i] | (upper >> 3 * i & 7) << 8,
                  upper >> 15 != 0, out + 32 * g + 8 * i);
  }
}

// Its f16 is in the upper bits of the four words that hold the other scales.
void decode_iq1_m(const Byte* in, float* out) {
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= u16_at(in + 48 + 2 * i) >> 12 << 4 * i;
  const float by = half(bits);
  for (int p = 0; p < 32; ++p) {
    const uint32_t three = u16_at(in + 48 + 2 * (p / 8)) >> 3 * (p / 2 % 4) & 7;
    const uint32_t upper = in[32 + p / 2] >> 4 * (p % 2);
    moved_point(by * static_cast<float>(2 * three + 1),
                in[p] | (upper & 7) << 8, (upper & 8) != 0, out + 8 * p);
  }
}

template <GgmlType kType, void (*kDecode)(const Byte*, float*)>
void blocks_of(const std::byte* blocks, uint64_t count, float* out) {
  const GgmlInfo& info = *ggml_info(kType);
  const auto* in = reinterpret_cast<const Byte*>(blocks);
  for (uint64_t b = 0; b < count; ++b, in += info.bytes, out += info.elements)
    kDecode(in, out);
}

}  // namespace

float ggml_e8m0_half(uint8_t code) {
  const auto power = static_cast<uint32_t>(code);
  return std::bit_cast<float>(power < 2 ? 0x200000U << power
                                        : (power - 1) << 23);
}

GgmlDecode ggml_decode(GgmlType type) {
  using enum GgmlType;
  switch (type) {
    case q4_0:
      return blocks_of<q4_0, decode_q4_0>;
    case q4_1:
      return blocks_of<q4_1, decode_q4_1>;
    case q5_0:
      return blocks_of<q5_0, decode_q5_0>;
    case q5_1:
      return blocks_of<q5_1, decode_q5_1>;
    case q8_0:
      return blocks_of<q8_0, decode_q8_0>;
    case q1_0:
      return blocks_of<q1_0, decode_q1_0>;
    case q2_0:
      return blocks_of<q2_0, decode_q2_0>;
    case q2_k:
      return blocks_of<q2_k, decode_q2_k>;
    case q3_k:
      return blocks_of<q3_k, decode_q3_k>;
    case q4_k:
      return blocks_of<q4_k, decode_q4_k>;
    case q5_k:
      return blocks_of<q5_k, decode_q5_k>;
    case q6_k:
      return blocks_of<q6_k, decode_q6_k>;
    case tq1_0:
      return blocks_of<tq1_0, decode_tq1_0>;
    case tq2_0:
      return blocks_of<tq2_0, decode_tq2_0>;
    case mxfp4:
      return blocks_of<mxfp4, decode_mxfp4>;
    case nvfp4:
      return blocks_of<nvfp4, decode_nvfp4>;
    case iq4_nl:
      return blocks_of<iq4_nl, decode_iq4_nl>;
    case iq4_xs:
      return blocks_of<iq4_xs, decode_iq4_xs>;
    case iq2_xxs:
      return blocks_of<iq2_xxs, decode_iq2_xxs>;
    case iq2_xs:
      return blocks_of<iq2_xs, decode_iq2_xs>;
    case iq2_s:
      return blocks_of<iq2_s, decode_iq2_s>;
    case iq3_xxs:
      return blocks_of<iq3_xxs, decode_iq3_xxs>;
    case iq3_s:
      return blocks_of<iq3_s, decode_iq3_s>;
    case iq1_s:
      return blocks_of<iq1_s, decode_iq1_s>;
    case iq1_m:
      return blocks_of<iq1_m, decode_iq1_m>;
    default:
      return nullptr;
  }
}

}  // namespace ckpt::reshard
