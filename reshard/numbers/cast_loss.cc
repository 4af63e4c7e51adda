// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/cast_loss.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "ckpt/catalog.h"
#include "lib/cpu.h"
#include "reshard/numbers/cast_kernel.h"

namespace ckpt::reshard {
namespace {

// Elements between two checks of what was found: they fit into the first-level
// cache, and their number into 16 bits.
constexpr uint64_t kChunk = 2048;

// Above this, numbers round to 480, for which e4m3 has no code; a tie goes to
// 448.
constexpr double kMostToE4m3 = 464;

uint64_t infinity_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x7FF0000000000000;
    case DType::f32:
      return 0x7F800000;
    case DType::f16:
      return 0x7C00;
    case DType::bf16:
      return 0x7F80;
    default:
      return 0;
  }
}

// The largest number, in stored form.
uint64_t largest_of(DType dtype) {
  switch (dtype) {
    case DType::f8_e4m3:
    case DType::f8_e8m0:
      return dtype == DType::f8_e4m3 ? 0x7E : 0xFE;
    case DType::f8_e5m2:
      return 0x7B;
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
      return 0x7F;
    default:
      return infinity_of(dtype) - 1;
  }
}

double as_double(DType dtype, uint64_t bits) {
  if (dtype == DType::f64) return std::bit_cast<double>(bits);
  std::byte in[8], out[8];
  std::memcpy(in, &bits, sizeof in);
  usable_cast_kernels()[0].cast(dtype, DType::f64, in, out, 1);
  double value;
  std::memcpy(&value, out, sizeof value);
  return value;
}

double after_cast(DType from, DType to, uint64_t bits) {
  std::byte in[8], out[8] = {};
  std::memcpy(in, &bits, sizeof in);
  usable_cast_kernels()[0].cast(from, to, in, out, 1);
  uint64_t result = 0;
  std::memcpy(&result, out, element_size(to));
  return as_double(to, result);
}

// The least of [low, high) for which `is` holds, or high. `is` must hold for
// everything above it.
template <class Is>
uint64_t first_of(uint64_t low, uint64_t high, Is is) {
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (is(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

struct Found {
  uint64_t largest = 0;
  uint64_t tiny = 0;
};

// The compiler vectorizes this loop; it compares signed numbers because all
// instruction sets can.
template <class Int>
[[gnu::always_inline]] inline Found look(const std::byte* in, uint64_t count,
                                         Int tiny) {
  constexpr Int kSign =
      static_cast<Int>(std::make_unsigned_t<Int>(1) << (8 * sizeof(Int) - 1));
  Int largest = 0;
  Int small = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Int bits;
    std::memcpy(&bits, in + i * sizeof bits, sizeof bits);
    const auto size = static_cast<Int>(bits & static_cast<Int>(~kSign));
    largest = size > largest ? size : largest;
    small = static_cast<Int>(small + Int{size <= tiny} - Int{size == 0});
  }
  return {static_cast<uint64_t>(largest), static_cast<uint64_t>(small)};
}

template <class Int>
[[gnu::flatten]] Found look_portable(const std::byte* in, uint64_t count,
                                     uint64_t tiny) {
  return look<Int>(in, count, static_cast<Int>(tiny));
}
using Look = Found (*)(const std::byte*, uint64_t, uint64_t);

#if defined(__x86_64__)
template <class Int>
[[gnu::target("avx2"), gnu::flatten]] Found look_avx2(const std::byte* in,
                                                      uint64_t count,
                                                      uint64_t tiny) {
  return look<Int>(in, count, static_cast<Int>(tiny));
}
#endif

template <class Int>
Look best_look() {
#if defined(__x86_64__)
  if (cpu_features().avx2) return look_avx2<Int>;
#endif
  return look_portable<Int>;
}

Look look_of(uint64_t size) {
  static const Look looks[] = {best_look<int16_t>(), best_look<int32_t>(),
                               best_look<int64_t>()};
  return looks[std::countr_zero(size) - 1];
}

uint64_t element(const std::byte* in, uint64_t index, uint64_t size) {
  uint64_t bits = 0;
  std::memcpy(&bits, in + index * size, size);
  return bits;
}

}  // namespace

CastLoss& CastLoss::operator+=(const CastLoss& other) {
  overflowed += other.overflowed;
  zeroed += other.zeroed;
  largest = std::max(largest, other.largest);
  return *this;
}

bool has_infinity(DType dtype) {
  return infinity_of(dtype) != 0 || dtype == DType::f8_e5m2;
}

LossCounter::LossCounter(DType from, DType to) : from_(from), to_(to) {
  const uint64_t infinity = infinity_of(from);
  if (infinity == 0 || !is_float(to) || from == to) return;
  // If the target has no infinities, one is lost just like a large number.
  last_ = has_infinity(to) ? infinity - 1 : infinity;
  over_ = first_of(1, last_ + 1, [&](uint64_t bits) {
    const double value = after_cast(from, to, bits);
    return !std::isfinite(value) ||
           (to == DType::f8_e4m3 && as_double(from, bits) > kMostToE4m3);
  });
  tiny_ =
      first_of(1, over_,
               [&](uint64_t bits) { return after_cast(from, to, bits) != 0; }) -
      1;
  most_ = largest_of(to);
}

CastLoss LossCounter::count(std::span<const std::byte> elements) const {
  CastLoss loss;
  if (!counts()) return loss;
  const uint64_t size = element_size(from_);
  const uint64_t sign = uint64_t{1} << (8 * size - 1);
  const Look look = look_of(size);
  const uint64_t all = elements.size() / size;
  uint64_t largest = 0;
  for (uint64_t begin = 0; begin < all; begin += kChunk) {
    const uint64_t count = std::min(kChunk, all - begin);
    const std::byte* in = elements.data() + begin * size;
    const Found found = look(in, count, tiny_);
    loss.zeroed += found.tiny;
    if (found.largest < over_ || over_ > last_) continue;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t bits = element(in, i, size) & ~sign;
      if (bits < over_ || bits > last_) continue;
      ++loss.overflowed;
      largest = std::max(largest, bits);
    }
  }
  if (largest != 0) loss.largest = as_double(from_, largest);
  return loss;
}

void LossCounter::saturate(const std::byte* in, std::byte* out,
                           uint64_t count) const {
  if (over_ > last_) return;
  const uint64_t from = element_size(from_);
  const uint64_t to = element_size(to_);
  const uint64_t sign = uint64_t{1} << (8 * from - 1);
  const Look look = look_of(from);
  for (uint64_t begin = 0; begin < count; begin += kChunk) {
    const uint64_t end = std::min(begin + kChunk, count);
    if (look(in + begin * from, end - begin, 0).largest < over_) continue;
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t bits = element(in, i, from);
      const uint64_t magnitude = bits & ~sign;
      if (magnitude < over_ || magnitude > last_) continue;
      uint64_t most = most_;
      if ((bits & sign) != 0) most |= uint64_t{1} << (8 * to - 1);
      std::memcpy(out + i * to, &most, to);
    }
  }
}

const LossCounter& loss_counter(DType from, DType to) {
  static std::mutex mutex;
  static std::map<std::pair<DType, DType>, LossCounter> counters;
  const std::lock_guard lock(mutex);
  return counters.try_emplace({from, to}, from, to).first->second;
}

}  // namespace ckpt::reshard
