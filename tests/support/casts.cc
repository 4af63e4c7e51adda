// SPDX-License-Identifier: Apache-2.0
#include "tests/support/casts.h"

#include <doctest/doctest.h>

#include <bit>

#include "ckpt/catalog.h"
#include "lib/module.h"
#include "reshard/torch/load.h"

namespace ckpt::test {
namespace {

using Bytes = std::vector<std::byte>;

template <class T>
void append(Bytes& bytes, T value) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), at, at + sizeof value);
}

void append_floats(bool wide, std::mt19937_64& random, Bytes& bytes) {
  const auto add = [&](uint32_t bits) {
    if (!wide) return append(bytes, bits);
    // The f32 and the doubles next to it, where double rounding shows.
    const auto value = static_cast<double>(std::bit_cast<float>(bits));
    for (const uint64_t step : {0, 1, -1})
      append(bytes, std::bit_cast<uint64_t>(value) + step);
  };
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t low : {0x0000, 0x0001, 0x0FFF, 0x1000, 0x1001, 0x7FFF,
                               0x8000, 0x8001, 0xF000, 0xFFFF})
      add(high << 16 | low);
  for (int i = 0; i < 1'000'000; ++i) {
    if (wide)
      append(bytes, static_cast<uint64_t>(random()));
    else
      append(bytes, static_cast<uint32_t>(random()));
  }
}

void append_integers(uint64_t size, std::mt19937_64& random, Bytes& bytes) {
  for (int i = 0; i < 8192; ++i) {
    const uint64_t bits = random() >> random() % 64;
    const uint64_t value = random() % 2 ? bits : ~bits;
    if (size == 8)
      append(bytes, value);
    else
      append(bytes, static_cast<uint32_t>(value));
  }
}

}  // namespace

Bytes cast_values(DType dtype, std::mt19937_64& random) {
  const uint64_t size = element_size(dtype);
  Bytes bytes;
  if (dtype == DType::bool_) {
    for (int i = 0; i < 512; ++i)
      append(bytes, static_cast<uint8_t>(i % 3 == 0));
  } else if (size == 1) {
    for (int i = 0; i < 512; ++i) append(bytes, static_cast<uint8_t>(i));
  } else if (size == 2) {
    for (int i = 0; i < 65536; ++i) append(bytes, static_cast<uint16_t>(i));
  } else if (dtype == DType::f32 || dtype == DType::f64) {
    append_floats(dtype == DType::f64, random, bytes);
  } else {
    append_integers(size, random, bytes);
  }
  return bytes;
}

bool have_torch() {
  if (!find_module("torch").empty()) return true;
  MESSAGE("skipped: this build has no torch module");
  return false;
}

Bytes cast_by_torch(DType from, DType to, const Bytes& in) {
  constexpr uint64_t kLast = 512;  // more than torch casts in another way
  const auto& torch = reshard::TorchModule::get();
  const uint64_t count = in.size() / element_size(from);
  Bytes longer = in;
  longer.resize(in.size() + kLast * element_size(from));
  Bytes out((count + kLast) * element_size(to));
  torch.require(torch.api().cast(torch.number(from, {}), torch.number(to, {}),
                                 longer.data(), out.data(), count + kLast));
  out.resize(count * element_size(to));
  return out;
}

}  // namespace ckpt::test
