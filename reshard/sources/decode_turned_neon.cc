// SPDX-License-Identifier: Apache-2.0
// The kernel of decode_turned.h for aarch64. A table of 16 elements is two
// registers, in each of which one instruction looks up 16 codes; another one
// stores the low and the high bytes as elements.
#if defined(__aarch64__)
#include "reshard/numbers/lanes.h"
#include "reshard/sources/decode_turned.h"

namespace ckpt::reshard {
namespace {

using lanes::Vector;

uint8_t* raw(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }

Vector low_halves(Vector codes) { return vandq_u8(codes, vdupq_n_u8(15)); }
Vector high_halves(Vector codes) { return vshrq_n_u8(codes, 4); }

// The low byte and the high byte of each element.
uint8x16x2_t look_up(Vector low_bytes, Vector high_bytes, Vector codes) {
  return {{vqtbl1q_u8(low_bytes, codes), vqtbl1q_u8(high_bytes, codes)}};
}

void split(std::byte* tables, uint64_t columns) {
  for (uint64_t c = 0; c < columns; ++c) {
    uint8_t* at = raw(tables + c * kTableBytes);
    const uint8x16x2_t table = vld2q_u8(at);
    vst1q_u8(at, table.val[0]);
    vst1q_u8(at + 16, table.val[1]);
  }
}

void gptq(const Turned& part, const std::byte* tables) {
  for (uint64_t c = 0; c < part.columns; c += 4) {
    Vector words[4];
    for (uint64_t i = 0; i < 4; ++i)
      words[i] = lanes::load(part.codes + i * part.stride + c * 4);
    lanes::turn_words(words);  // for one column: its 32 codes
    for (uint64_t k = 0; k < 4; ++k) {
      const std::byte* table = tables + (c + k) * kTableBytes;
      const Vector low_bytes = lanes::load(table);
      const Vector high_bytes = lanes::load(table + 16);
      const Vector even = low_halves(words[k]);
      const Vector odd = high_halves(words[k]);
      uint8_t* to = raw(part.out + (c + k) * part.by_column);
      vst2q_u8(to, look_up(low_bytes, high_bytes, vzip1q_u8(even, odd)));
      vst2q_u8(to + 32, look_up(low_bytes, high_bytes, vzip2q_u8(even, odd)));
    }
  }
}

// 16 rows of 32 columns.
void awq_rows(const Turned& part, const std::byte* tables, uint64_t c,
              uint64_t row) {
  // For byte i of a word: the columns of its lower and its upper half.
  constexpr uint64_t kColumns[4][2] = {{0, 2}, {4, 6}, {1, 3}, {5, 7}};
  constexpr uint8_t kByByte[] = {0, 4, 8,  12, 1, 5, 9,  13,
                                 2, 6, 10, 14, 3, 7, 11, 15};
  const Vector by_byte = vld1q_u8(kByByte);
  Vector words[4][4];  // four rows of each of four words
  for (uint64_t i = 0; i < 16; ++i)
    words[i / 4][i % 4] =
        lanes::load(part.codes + (row + i) * part.stride + c / 2);
  for (auto& four : words) lanes::turn_words(four);
  for (uint64_t w = 0; w < 4; ++w) {
    Vector bytes[4];
    for (uint64_t i = 0; i < 4; ++i)
      bytes[i] = vqtbl1q_u8(words[i][w], by_byte);
    lanes::turn_words(bytes);
    for (uint64_t i = 0; i < 4; ++i)
      for (uint64_t half = 0; half < 2; ++half) {
        const uint64_t column = c + 8 * w + kColumns[i][half];
        const std::byte* table = tables + column * kTableBytes;
        vst2q_u8(raw(part.out + column * part.by_column + 2 * row),
                 look_up(lanes::load(table), lanes::load(table + 16),
                         half ? high_halves(bytes[i]) : low_halves(bytes[i])));
      }
  }
}

void awq(const Turned& part, const std::byte* tables) {
  for (uint64_t c = 0; c < part.columns; c += 32)
    for (uint64_t row = 0; row < kTurnedRows; row += 16)
      awq_rows(part, tables, c, row);
}

// 16 x 16 bytes: four rounds of interleaving row i with row i + 8.
void turn_bytes(Vector* x) {
  Vector y[16];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      y[2 * i] = vzip1q_u8(x[i], x[i + 8]);
      y[2 * i + 1] = vzip2q_u8(x[i], x[i + 8]);
    }
    for (int i = 0; i < 8; ++i) {
      x[2 * i] = vzip1q_u8(y[i], y[i + 8]);
      x[2 * i + 1] = vzip2q_u8(y[i], y[i + 8]);
    }
  }
}

// A zero has no exponent to which a power could be added.
int16x8_t times(Vector numbers, int16x8_t powers) {
  const int16x8_t number = vreinterpretq_s16_u8(numbers);
  const uint16x8_t some = vtstq_s16(number, vdupq_n_s16(0x7FFF));
  return vaddq_s16(number, vandq_s16(powers, vreinterpretq_s16_u16(some)));
}

void e2m1_rows(const Turned& part, const int16_t* powers, uint64_t c,
               uint64_t row) {
  // bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
  constexpr uint8_t kLow[] = {0, 0, 0x80, 0xC0, 0, 0x40, 0x80, 0xC0,
                              0, 0, 0x80, 0xC0, 0, 0x40, 0x80, 0xC0};
  constexpr uint8_t kHigh[] = {0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40,
                               0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0, 0xC0, 0xC0};
  const Vector low_bytes = vld1q_u8(kLow);
  const Vector high_bytes = vld1q_u8(kHigh);
  Vector bytes[16];
  for (uint64_t i = 0; i < 16; ++i)
    bytes[i] = lanes::load(part.codes + (row + i) * part.stride + c / 2);
  turn_bytes(bytes);
  const int16x8_t first = vld1q_s16(powers + c + row);
  const int16x8_t second = vld1q_s16(powers + c + row + 8);
  for (uint64_t i = 0; i < 32; ++i) {
    const Vector pair = bytes[i / 2];
    const Vector codes = i % 2 ? high_halves(pair) : low_halves(pair);
    const uint8x16x2_t made = look_up(low_bytes, high_bytes, codes);
    std::byte* to = part.out + (c + i) * part.by_column + 2 * row;
    const auto put = [&](std::byte* at, Vector numbers, int16x8_t by) {
      lanes::store(at, vreinterpretq_u8_s16(times(numbers, by)));
    };
    put(to, vzip1q_u8(made.val[0], made.val[1]), first);
    put(to + 16, vzip2q_u8(made.val[0], made.val[1]), second);
  }
}

void e2m1(const Turned& part, const int16_t* powers) {
  for (uint64_t c = 0; c < part.columns; c += 32)
    for (uint64_t row = 0; row < kTurnedRows; row += 16)
      e2m1_rows(part, powers, c, row);
}

}  // namespace

std::span<const TurnedKernel> usable_turned_kernels() {
  static constexpr TurnedKernel kKernels[] = {{"neon", split, gptq, awq, e2m1}};
  return kKernels;
}

}  // namespace ckpt::reshard
#endif
