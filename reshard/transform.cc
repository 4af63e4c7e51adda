#include "reshard/transform.h"

#include <algorithm>

#include "ckpt/error.h"

namespace ckpt::reshard {
namespace {

void swap_units(std::span<std::byte> bytes, size_t unit) {
  for (size_t at = 0; at + unit <= bytes.size(); at += unit)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + unit));
}

// Flips the top bit of every `step`-th unit, beginning with unit `first`.
void flip_signs(std::span<std::byte> bytes, size_t unit, size_t first,
                size_t step) {
  for (size_t at = (first + 1) * unit - 1; at < bytes.size(); at += unit * step)
    bytes[at] ^= std::byte{0x80};
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
}

}  // namespace ckpt::reshard
