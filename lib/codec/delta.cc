// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/delta.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace ckpt::codec {
namespace {

constexpr uint64_t kMostElements = 4096;  // at a time

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64;
}

bool is_signed(DType dtype) {
  return dtype == DType::i8 || dtype == DType::i16 || dtype == DType::i32 ||
         dtype == DType::i64;
}

bool is_integer(DType dtype) {
  return is_signed(dtype) || dtype == DType::u8 || dtype == DType::u16 ||
         dtype == DType::u32 || dtype == DType::u64;
}

// The integer at `from`, with its sign, modulo 2^64.
uint64_t load_integer(const std::byte* from, uint64_t bytes, bool has_sign) {
  uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  const uint64_t unused = 64 - 8 * bytes;
  if (!has_sign || unused == 0) return value;
  return static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused);
}

double load_float(const std::byte* from, DType dtype) {
  if (dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  double value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Adds one element. The first float is taken as it is, since 0 + -0 is 0.
template <class Float>
uint64_t add_float(uint64_t sum, double step, bool first, std::byte* to) {
  const auto before = static_cast<Float>(std::bit_cast<double>(sum));
  const auto value =
      first ? static_cast<Float>(step)
            : static_cast<Float>(before + static_cast<Float>(step));
  std::memcpy(to, &value, sizeof value);
  return std::bit_cast<uint64_t>(static_cast<double>(value));
}

}  // namespace

bool undoes(const Delta& delta) {
  return (is_float(delta.stored) && is_float(delta.plain)) ||
         (is_integer(delta.stored) && is_integer(delta.plain));
}

std::optional<uint64_t> stored_size(const Delta& delta, uint64_t plain) {
  const uint64_t element = element_size(delta.plain);
  const uint64_t each = element_size(delta.stored);
  if (plain % element != 0 || plain / element > UINT64_MAX / each)
    return std::nullopt;
  return plain / element * each;
}

Undelta::Undelta(const Delta& delta, uint64_t plain, Read read)
    : delta_(delta),
      count_(plain / element_size(delta.plain)),
      read_(std::move(read)) {}

void Undelta::read(uint64_t offset, std::span<std::byte> buffer) {
  const uint64_t element = element_size(delta_.plain);
  while (!buffer.empty()) {
    if (offset < begin_ * element) next_ = begin_ = sum_ = 0;
    while (offset >= next_ * element) load();
    const uint64_t from = offset - begin_ * element;
    const size_t count = std::min<size_t>(buffer.size(), plain_.size() - from);
    std::memcpy(buffer.data(), plain_.data() + from, count);
    buffer = buffer.subspan(count);
    offset += count;
  }
}

void Undelta::load() {
  const uint64_t each = element_size(delta_.stored);
  const uint64_t element = element_size(delta_.plain);
  const uint64_t count = std::min(kMostElements, count_ - next_);
  stored_.resize(count * each);
  plain_.resize(count * element);
  read_(next_ * each, stored_);
  begin_ = next_;
  for (uint64_t i = 0; i < count; ++i) {
    const std::byte* from = stored_.data() + i * each;
    std::byte* to = plain_.data() + i * element;
    if (is_float(delta_.plain)) {
      const double step = load_float(from, delta_.stored);
      sum_ = delta_.plain == DType::f32
                 ? add_float<float>(sum_, step, next_ + i == 0, to)
                 : add_float<double>(sum_, step, next_ + i == 0, to);
    } else {
      sum_ += load_integer(from, each, is_signed(delta_.stored));
      std::memcpy(to, &sum_, element);
    }
  }
  next_ += count;
}

}  // namespace ckpt::codec
