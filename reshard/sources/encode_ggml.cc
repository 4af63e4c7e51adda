// SPDX-License-Identifier: Apache-2.0
// From numbers to blocks, as the gguf package's quants.py does for
// convert_hf_to_gguf.py. llama.cpp's C code gives the same bytes for finite
// numbers. Of a least number that is both 0 and -0 (Q4_1, Q5_1), the first
// counts, as in C; numpy's choice depends on the processor.
//
// Infinities and NaNs give what numpy's casts on x86-64 make of them. C takes
// no notice of a NaN while it looks for the largest number.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "reshard/numbers/numbers.h"
#include "reshard/sources/decode_ggml.h"

namespace ckpt::reshard {
namespace {

using Code = uint8_t;

// What numpy's largest and least of numbers with a NaN mostly are, whichever
// NaN it was.
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void put_half(float number, Code* out) {
  const uint32_t bits = numbers::float_to_f16(std::bit_cast<uint32_t>(number));
  out[0] = static_cast<Code>(bits);
  out[1] = static_cast<Code>(bits >> 8);
}

// What x86-64 makes of a number that an int has no room for.
int as_int(float number) {
  return std::abs(number) < 0x1p31F ? static_cast<int>(number)
                                    : std::numeric_limits<int>::min();
}

// Where a scale and its inverse are numbers, so are all codes, and small: they
// need no such care, and the loops become vector instructions.
bool is_plain(float scale, float inverse) {
  return std::isfinite(scale) && std::isfinite(inverse);
}

float inverse_of(float scale) { return scale == 0 ? 0 : 1 / scale; }

// The bits of the largest magnitude; more than infinity's if there is a NaN.
template <int kCount>
uint32_t largest_of(const float* in) {
  int32_t most = 0;
  for (int i = 0; i < kCount; ++i)
    most = std::max(most, std::bit_cast<int32_t>(in[i]) & 0x7FFFFFFF);
  return static_cast<uint32_t>(most);
}

float largest(uint32_t bits) {
  return bits > numbers::kFloatInf ? kNan : std::bit_cast<float>(bits);
}

// The first number of the largest magnitude, or the first NaN.
template <int kCount>
float first_largest(const float* in) {
  const uint32_t most =
      std::min(largest_of<kCount>(in), numbers::kFloatInf + 1);
  for (int i = 0; i < kCount; ++i)
    if ((std::bit_cast<uint32_t>(in[i]) & 0x7FFFFFFF) >= most) return in[i];
  return 0;
}

// The lower four bits of codes i and i + 16 make byte i.
void put_halves(const Code* codes, Code* out) {
  for (int i = 0; i < 16; ++i)
    out[i] = static_cast<Code>((codes[i] & 15) | codes[i + 16] << 4);
}

void put_fifths(const Code* codes, Code* out) {
  for (int i = 0; i < 4; ++i) {
    Code bits = 0;
    for (int j = 0; j < 8; ++j)
      bits = static_cast<Code>(bits | codes[8 * i + j] >> 4 << j);
    out[i] = bits;
  }
}

// Codes of (x - least) * inverse + middle, without what follows the point.
template <int kMost>
void positive_codes(const float* in, float least, float inverse, float middle,
                    bool plain, Code* codes) {
  if (plain) {
    for (int i = 0; i < 32; ++i)
      codes[i] = static_cast<Code>(std::min(
          static_cast<int>((in[i] - least) * inverse + middle), kMost));
    return;
  }
  for (int i = 0; i < 32; ++i) {
    const int code = as_int((in[i] - least) * inverse + middle);
    codes[i] = std::min(static_cast<Code>(code), static_cast<Code>(kMost));
  }
}

// Q4_0, Q5_0: the number of the largest magnitude becomes code 0.
template <int kMiddle>
void encode_around(const float* in, Code* out) {
  const float scale = first_largest<32>(in) / -kMiddle;
  const float inverse = inverse_of(scale);
  Code codes[32];
  positive_codes<2 * kMiddle - 1>(in, 0, inverse, kMiddle + 0.5F,
                                  is_plain(scale, inverse), codes);
  put_half(scale, out);
  if constexpr (kMiddle == 16) put_fifths(codes, out + 2);
  put_halves(codes, out + (kMiddle == 16 ? 6 : 2));
}

// Q4_1, Q5_1: from the least number to the largest.
template <int kMost>
void encode_above(const float* in, Code* out) {
  float least = in[0], most = in[0];
  for (int i = 1; i < 32; ++i) {
    least = in[i] < least ? in[i] : least;
    most = in[i] > most ? in[i] : most;
  }
  if (largest_of<32>(in) > numbers::kFloatInf) least = most = kNan;
  const float scale = (most - least) / kMost;
  const float inverse = inverse_of(scale);
  Code codes[32];
  positive_codes<kMost>(in, least, inverse, 0.5F, is_plain(scale, inverse),
                        codes);
  put_half(scale, out);
  put_half(least, out + 2);
  if constexpr (kMost == 31) put_fifths(codes, out + 4);
  put_halves(codes, out + (kMost == 31 ? 8 : 4));
}

// To the nearest, halfway away from zero.
int rounded(float number) {
  const float size = std::abs(number);
  const int whole = static_cast<int>(size);
  const int nearest =
      whole + (size - static_cast<float>(whole) >= 0.5F ? 1 : 0);
  return number < 0 ? -nearest : nearest;
}

// Codes of both signs; gives their scale.
template <int kCount, int kMost>
float signed_codes(const float* in, int8_t* codes) {
  const float scale = largest(largest_of<kCount>(in)) / kMost;
  const float inverse = inverse_of(scale);
  if (is_plain(scale, inverse)) {
    for (int i = 0; i < kCount; ++i)
      codes[i] = static_cast<int8_t>(rounded(in[i] * inverse));
  } else {
    // An infinity has no distance to the whole number below it: a NaN, whose
    // code is zero.
    for (int i = 0; i < kCount; ++i) {
      const float number = in[i] * inverse;
      codes[i] = static_cast<int8_t>(
          std::isfinite(number) ? as_int(std::round(number)) : 0);
    }
  }
  return scale;
}

void encode_q8_0(const float* in, Code* out) {
  int8_t codes[32];
  put_half(signed_codes<32, 127>(in, codes), out);
  std::memcpy(out + 2, codes, sizeof codes);
}

// Digits of base 3 as a fraction of 256, rounded up: see decode_tq1_0().
template <int kBytes, int kDigits>
void put_threes(const int8_t* codes, Code* out) {
  for (int i = 0; i < kBytes; ++i) {
    int number = 0, power = 81;
    for (int j = 0; j < kDigits; ++j, power /= 3)
      number += (codes[kBytes * j + i] + 1) * power;
    out[i] = static_cast<Code>((number * 256 + 242) / 243);
  }
}

void encode_tq1_0(const float* in, Code* out) {
  int8_t codes[256];
  const float scale = signed_codes<256, 1>(in, codes);
  put_threes<32, 5>(codes, out);
  put_threes<16, 5>(codes + 160, out + 32);
  put_threes<4, 4>(codes + 240, out + 48);
  put_half(scale, out + 52);
}

void encode_tq2_0(const float* in, Code* out) {
  int8_t codes[256];
  const float scale = signed_codes<256, 1>(in, codes);
  for (int run = 0; run < 2; ++run)
    for (int i = 0; i < 32; ++i) {
      int byte = 0;
      for (int j = 0; j < 4; ++j)
        byte |= (codes[128 * run + 32 * j + i] + 1) << 2 * j;
      out[32 * run + i] = static_cast<Code>(byte);
    }
  put_half(scale, out + 64);
}

// The nearest of e2m1's numbers; of two as near, the one with the lower code.
Code nearest_e2m1(float scale, float number) {
  constexpr float kTwice[] = {0, 1,  2,  3,  4,  6,  8,  12,
                              0, -1, -2, -3, -4, -6, -8, -12};
  Code best = 0;
  float least = std::abs(scale * kTwice[0] - number);
  for (Code c = 1; c < 16; ++c) {
    const float far = std::abs(scale * kTwice[c] - number);
    if (far < least) {
      least = far;
      best = c;
    }
  }
  return best;
}

void encode_mxfp4(const float* in, Code* out) {
  const auto most = largest(largest_of<32>(in));
  Code power = 0;
  if (most > 0) {
    const auto log = static_cast<float>(std::log2(static_cast<double>(most)));
    power = static_cast<Code>(as_int(std::floor(log) - 2 + 127));
  }
  const float scale = ggml_e8m0_half(power);
  Code codes[32];
  for (int i = 0; i < 32; ++i) codes[i] = nearest_e2m1(scale, in[i]);
  out[0] = power;
  put_halves(codes, out + 1);
}

template <GgmlType kType, void (*kEncode)(const float*, Code*)>
void blocks_to(const float* numbers, uint64_t count, std::byte* blocks) {
  const GgmlInfo& info = *ggml_info(kType);
  auto* out = reinterpret_cast<Code*>(blocks);
  for (uint64_t b = 0; b < count;
       ++b, numbers += info.elements, out += info.bytes)
    kEncode(numbers, out);
}

}  // namespace

GgmlEncode ggml_encode(GgmlType type) {
  using enum GgmlType;
  switch (type) {
    case q4_0:
      return blocks_to<q4_0, encode_around<8>>;
    case q4_1:
      return blocks_to<q4_1, encode_above<15>>;
    case q5_0:
      return blocks_to<q5_0, encode_around<16>>;
    case q5_1:
      return blocks_to<q5_1, encode_above<31>>;
    case q8_0:
      return blocks_to<q8_0, encode_q8_0>;
    case tq1_0:
      return blocks_to<tq1_0, encode_tq1_0>;
    case tq2_0:
      return blocks_to<tq2_0, encode_tq2_0>;
    case mxfp4:
      return blocks_to<mxfp4, encode_mxfp4>;
    default:
      return nullptr;
  }
}

}  // namespace ckpt::reshard
