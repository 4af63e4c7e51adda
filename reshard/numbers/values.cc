// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/values.h"

#include <algorithm>
#include <cstring>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "reshard/numbers/cast_kernel.h"

namespace ckpt::reshard {
namespace {

template <class T>
void each(const std::byte* in, uint64_t count, double* out) {
  for (uint64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, in + i * sizeof value, sizeof value);
    out[i] = static_cast<double>(value);
  }
}

// Goes through f32, which holds all values of the narrower types.
void narrow_floats(DType dtype, const std::byte* in, uint64_t count,
                   double* out) {
  constexpr uint64_t kBlock = 2048;
  const uint64_t size = element_size(dtype);
  float block[kBlock];
  for (uint64_t begin = 0; begin < count; begin += kBlock) {
    const uint64_t n = std::min(kBlock, count - begin);
    best_cast_kernel().cast(dtype, DType::f32, in + begin * size,
                            reinterpret_cast<std::byte*>(block), n);
    for (uint64_t i = 0; i < n; ++i)
      out[begin + i] = static_cast<double>(block[i]);
  }
}

}  // namespace

uint32_t doubles_of(DType dtype) {
  return dtype == DType::c128 || dtype == DType::c64 || dtype == DType::c32 ? 2
                                                                            : 1;
}

bool has_values(DType dtype) {
  switch (dtype) {
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u64:
    case DType::u32:
    case DType::u16:
    case DType::u8:
    case DType::bool_:
    case DType::c128:
    case DType::c64:
    case DType::c32:
    case DType::qi8:
    case DType::qu8:
    case DType::qi32:
      return true;
    default:
      return is_float(dtype);
  }
}

void to_doubles(DType dtype, const std::byte* in, uint64_t count, double* out) {
  switch (dtype) {
    case DType::f64:
      return each<double>(in, count, out);
    case DType::f32:
      return each<float>(in, count, out);
    case DType::i64:
      return each<int64_t>(in, count, out);
    case DType::i32:
    case DType::qi32:
      return each<int32_t>(in, count, out);
    case DType::i16:
      return each<int16_t>(in, count, out);
    case DType::i8:
    case DType::qi8:
      return each<int8_t>(in, count, out);
    case DType::u64:
      return each<uint64_t>(in, count, out);
    case DType::u32:
      return each<uint32_t>(in, count, out);
    case DType::u16:
      return each<uint16_t>(in, count, out);
    case DType::u8:
    case DType::bool_:
    case DType::qu8:
      return each<uint8_t>(in, count, out);
    case DType::c128:
      return each<double>(in, 2 * count, out);
    case DType::c64:
      return each<float>(in, 2 * count, out);
    case DType::c32:
      return narrow_floats(DType::f16, in, 2 * count, out);
    default:
      if (!is_float(dtype))
        throw unfaithful_error({}, "elements of {} have no values to read",
                               name(dtype));
      return narrow_floats(dtype, in, count, out);
  }
}

}  // namespace ckpt::reshard
