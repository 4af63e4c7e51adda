// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/transform.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ckpt/error.h"
#include "reshard/numbers/numbers.h"

namespace ckpt::reshard {
namespace {

void swap_units(std::span<std::byte> bytes, size_t unit) {
  for (size_t at = 0; at + unit <= bytes.size(); at += unit)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + unit));
}

// Flips the top bit of every `step`-th unit, starting with unit `first`.
void flip_signs(std::span<std::byte> bytes, size_t unit, size_t first,
                size_t step) {
  for (size_t at = (first + 1) * unit - 1; at < bytes.size(); at += unit * step)
    bytes[at] ^= std::byte{0x80};
}

// Calls add(x) for each element x, in place.
template <class Stored, class Add>
void change_each(std::span<std::byte> bytes, Add add) {
  for (size_t at = 0; at + sizeof(Stored) <= bytes.size();
       at += sizeof(Stored)) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + at, sizeof stored);
    stored = static_cast<Stored>(add(stored));
    std::memcpy(bytes.data() + at, &stored, sizeof stored);
  }
}

// Computes in f32, as torch does for a tensor of half precision.
template <class Function>
void compute(DType dtype, std::span<std::byte> bytes, Function function) {
  using namespace numbers;
  const auto narrow = [&](uint32_t bits) {
    return bits_as<uint32_t>(function(bits_as<float>(bits)));
  };
  if (dtype == DType::bf16)
    change_each<uint16_t>(bytes, [&](uint16_t x) {
      return float_to_bf16(narrow(bf16_to_float(x)), kNanFromNarrow);
    });
  else if (dtype == DType::f16)
    change_each<uint16_t>(bytes, [&](uint16_t x) {
      return float_to_f16(narrow(f16_to_float(x)));
    });
  else if (dtype == DType::f32)
    change_each<float>(bytes, function);
  else if (dtype == DType::f64)
    change_each<double>(bytes, function);
  else
    throw unfaithful_error({}, "arithmetic on {} elements", name(dtype));
}

}  // namespace

void apply_transform(uint8_t transform, DType dtype,
                     std::span<std::byte> bytes) {
  const size_t unit = info(dtype).swap;
  const bool complex =
      dtype == DType::c128 || dtype == DType::c64 || dtype == DType::c32;
  const bool real = dtype == DType::f64 || dtype == DType::f32 ||
                    dtype == DType::f16 || dtype == DType::bf16;
  if (transform & kSwapBytes && unit > 1) swap_units(bytes, unit);
  if (transform & kNegate) {
    if (!complex && !real)
      throw unfaithful_error({}, "a negated view of {} elements", name(dtype));
    flip_signs(bytes, unit, 0, 1);
  }
  if (transform & kConjugate && complex) flip_signs(bytes, unit, 1, 2);
  if (transform & kAddOne) compute(dtype, bytes, [](auto x) { return x + 1; });
  if (transform & kSubtractOne)
    compute(dtype, bytes, [](auto x) { return x - 1; });
  if (transform & kNegatedExp)
    compute(dtype, bytes, [](auto x) { return -std::exp(x); });
  if (transform & kLogOfNegated)
    compute(dtype, bytes, [](auto x) { return std::log(-x); });
}

}  // namespace ckpt::reshard
