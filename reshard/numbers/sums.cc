// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/sums.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "ckpt/error.h"
#include "reshard/numbers/cast_kernel.h"

namespace ckpt::reshard {

[[gnu::noinline]] void scale_all(float* x, uint64_t count, float by) {
  for (uint64_t i = 0; i < count; ++i) x[i] *= by;
}
[[gnu::noinline]] void add_all(float* x, const float* y, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) x[i] += y[i];
}
[[gnu::noinline]] void scale_each(float* x, const float* y, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) x[i] *= y[i];
}

void narrow_sum(DType dtype, const float* in, std::byte* out, uint64_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(in);
  if (dtype == DType::f32)
    std::memcpy(out, bytes, count * sizeof(float));
  else
    best_cast_kernel().cast(DType::f32, dtype, bytes, out, count);
}

void check_sums(std::span<const float> sums, std::span<const float> base,
                const SumPlace& place) {
  // What rounds to an infinity in f16; other types have the range of f32.
  const float limit = place.dtype == DType::f16
                          ? 65520.0F
                          : std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < sums.size(); ++i) {
    if (std::fabs(sums[i]) < limit || !std::isfinite(base[i])) continue;
    throw unfaithful_error(
        {{}, place.tensor},
        "[{}, {}] is {:g} with the adapter, which {} can't hold",
        place.row + i / place.columns, place.column + i % place.columns,
        sums[i], ckpt::name(place.dtype))
        .with_hint(
            "the adapter was trained for another base, or its training "
            "diverged: take an older step of it; --allow-nonfinite writes the "
            "sums as they are");
  }
}

}  // namespace ckpt::reshard
