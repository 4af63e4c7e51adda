// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/cast_kernel.h"

#include <algorithm>
#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "ckpt/catalog.h"
#include "lib/cpu.h"
#include "reshard/numbers/numbers.h"

namespace ckpt::reshard {
namespace {

using namespace numbers;

// Converts each stored type from and to the bits of a float.
struct F64 {
  using Bits = uint64_t;
  static uint32_t widen(Bits bits) { return double_to_float(bits); }
  static Bits narrow(uint32_t bits) { return float_to_double(bits); }
};
struct F16 {
  using Bits = uint16_t;
  static uint32_t widen(Bits bits) { return f16_to_float(bits); }
  static uint32_t narrow(uint32_t bits) { return float_to_f16(bits); }
};
template <uint32_t nan>
struct Bf16 {
  using Bits = uint16_t;
  static uint32_t widen(Bits bits) { return bf16_to_float(bits); }
  static uint32_t narrow(uint32_t bits) { return float_to_bf16(bits, nan); }
};
struct E4m3 {
  using Bits = uint8_t;
  static uint32_t widen(Bits bits) { return e4m3_to_float(bits); }
  static uint32_t narrow(uint32_t bits) { return float_to_e4m3(bits); }
};
struct E5m2 {
  using Bits = uint8_t;
  static uint32_t widen(Bits bits) { return e5m2_to_float(bits); }
  static uint32_t narrow(uint32_t bits) { return float_to_e5m2(bits); }
};
template <uint32_t man, uint32_t bias>
struct Fnuz {
  using Bits = uint8_t;
  static uint32_t widen(Bits bits) { return fnuz_to_float(bits, man, bias); }
  static uint32_t narrow(uint32_t bits) {
    return float_to_fnuz(bits, man, bias);
  }
};
struct E8m0 {
  using Bits = uint8_t;
  static uint32_t widen(Bits bits) { return e8m0_to_float(bits); }
  static uint32_t narrow(uint32_t bits) { return float_to_e8m0(bits); }
};

// The compiler vectorizes this loop. always_inline, so that it does so for the
// caller's instruction set.
template <class In, class Out, class Convert>
[[gnu::always_inline]] inline void each(const std::byte* __restrict in,
                                        std::byte* __restrict out,
                                        uint64_t count, Convert convert) {
  for (uint64_t i = 0; i < count; ++i) {
    In from;
    std::memcpy(&from, in + i * sizeof from, sizeof from);
    const auto to = static_cast<Out>(convert(from));
    std::memcpy(out + i * sizeof to, &to, sizeof to);
  }
}

// An instruction set: loops compiled for it, and whether it casts f16 itself.
struct Portable {
  static constexpr bool kHalves = false;
  template <class In, class Out, auto convert>
  [[gnu::flatten]] static void run(const std::byte* in, std::byte* out,
                                   uint64_t count) {
    each<In, Out>(in, out, count, convert);
  }
};

#if defined(__x86_64__)

struct Avx2 {
  static constexpr bool kHalves = true;
  template <class In, class Out, auto convert>
  [[gnu::target("avx2"), gnu::flatten]] static void run(const std::byte* in,
                                                        std::byte* out,
                                                        uint64_t count) {
    each<In, Out>(in, out, count, convert);
  }
};

struct Avx512 {
  static constexpr bool kHalves = true;
  template <class In, class Out, auto convert>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"),
    gnu::flatten]] static void
  run(const std::byte* in, std::byte* out, uint64_t count) {
    each<In, Out>(in, out, count, convert);
  }
};

// F16C's instructions produce the same bits as the rules, NaNs included, in a
// fifth of the time. They take eight elements at once; the rules do the rest.
[[gnu::target("avx,f16c")]] void widen_halves(const std::byte* in,
                                              std::byte* out, uint64_t count) {
  uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const auto* from = reinterpret_cast<const __m128i*>(in + 2 * i);
    const __m256 floats = _mm256_cvtph_ps(_mm_loadu_si128(from));
    _mm256_storeu_ps(reinterpret_cast<float*>(out + 4 * i), floats);
  }
  each<uint16_t, uint32_t>(in + 2 * i, out + 4 * i, count - i, F16::widen);
}
[[gnu::target("avx,f16c")]] void narrow_halves(const std::byte* in,
                                               std::byte* out, uint64_t count) {
  uint64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const auto* from = reinterpret_cast<const float*>(in + 4 * i);
    const __m128i halves = _mm256_cvtps_ph(
        _mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i), halves);
  }
  each<uint32_t, uint16_t>(in + 4 * i, out + 2 * i, count - i, F16::narrow);
}

#elif defined(__aarch64__)

// Every aarch64 has the vectors that Portable's loops compile to, and casts f16
// to the same bits as the rules.
struct Neon : Portable {
  static constexpr bool kHalves = true;
};

void widen_halves(const std::byte* in, std::byte* out, uint64_t count) {
  uint64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const auto* from = reinterpret_cast<const uint8_t*>(in + 2 * i);
    const float16x4_t halves = vreinterpret_f16_u8(vld1_u8(from));
    vst1q_u8(reinterpret_cast<uint8_t*>(out + 4 * i),
             vreinterpretq_u8_f32(vcvt_f32_f16(halves)));
  }
  each<uint16_t, uint32_t>(in + 2 * i, out + 4 * i, count - i, F16::widen);
}
void narrow_halves(const std::byte* in, std::byte* out, uint64_t count) {
  uint64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const auto* from = reinterpret_cast<const uint8_t*>(in + 4 * i);
    const float32x4_t floats = vreinterpretq_f32_u8(vld1q_u8(from));
    vst1_u8(reinterpret_cast<uint8_t*>(out + 2 * i),
            vreinterpret_u8_f16(vcvt_f16_f32(floats)));
  }
  each<uint32_t, uint16_t>(in + 4 * i, out + 2 * i, count - i, F16::narrow);
}

#endif

// step_of(the type above for `dtype`); null for f32 and anything that is not a
// float.
template <class StepOf>
CastStep find_step(DType dtype, bool from_wide, StepOf step_of) {
  switch (dtype) {
    case DType::f64:
      return step_of(F64());
    case DType::f16:
      return step_of(F16());
    case DType::bf16:
      return from_wide ? step_of(Bf16<kNanFromWide>())
                       : step_of(Bf16<kNanFromNarrow>());
    case DType::f8_e4m3:
      return step_of(E4m3());
    case DType::f8_e5m2:
      return step_of(E5m2());
    case DType::f8_e4m3fnuz:
      return step_of(Fnuz<3, 8>());
    case DType::f8_e5m2fnuz:
      return step_of(Fnuz<2, 16>());
    case DType::f8_e8m0:
      return step_of(E8m0());
    default:
      return nullptr;
  }
}

template <class Set>
CastStep widen_step(DType from) {
  if constexpr (Set::kHalves)
    if (from == DType::f16) return widen_halves;
  return find_step(from, true, [](auto type) -> CastStep {
    using Type = decltype(type);
    return Set::template run<typename Type::Bits, uint32_t, Type::widen>;
  });
}
template <class Set>
CastStep narrow_step(DType from, DType to) {
  if constexpr (Set::kHalves)
    if (to == DType::f16) return narrow_halves;
  const bool from_wide = from == DType::f64 || from == DType::f32;
  return find_step(to, from_wide, [](auto type) -> CastStep {
    using Type = decltype(type);
    return Set::template run<uint32_t, typename Type::Bits, Type::narrow>;
  });
}

template <class Set>
CastKernel kernel(std::string_view name) {
  return {name, widen_step<Set>, narrow_step<Set>};
}

std::vector<CastKernel> find_kernels() {
  std::vector<CastKernel> kernels = {kernel<Portable>("portable")};
#if defined(__x86_64__)
  if (!cpu_features().avx2 || !cpu_features().f16c) return kernels;
  kernels.push_back(kernel<Avx2>("avx2"));
  if (cpu_features().avx512bw && cpu_features().avx512dq &&
      cpu_features().avx512vl)
    kernels.push_back(kernel<Avx512>("avx512"));
#elif defined(__aarch64__)
  kernels.push_back(kernel<Neon>("neon"));
#endif
  return kernels;
}

}  // namespace

bool is_float(DType dtype) {
  return dtype == DType::f32 || widen_step<Portable>(dtype) != nullptr;
}

void CastKernel::cast(DType from, DType to, const std::byte* in, std::byte* out,
                      uint64_t count) const {
  const CastStep first = widen(from);
  const CastStep second = narrow(from, to);
  if (!second) return first(in, out, count);
  if (!first) return second(in, out, count);
  constexpr uint64_t kChunk = 2048;
  alignas(64) std::byte middle[kChunk * 4];
  const uint64_t in_size = element_size(from);
  const uint64_t out_size = element_size(to);
  for (uint64_t begin = 0; begin < count; begin += kChunk) {
    const uint64_t n = std::min(kChunk, count - begin);
    first(in + begin * in_size, middle, n);
    second(middle, out + begin * out_size, n);
  }
}

std::span<const CastKernel> usable_cast_kernels() {
  static const std::vector<CastKernel> kernels = find_kernels();
  return kernels;
}

const CastKernel& best_cast_kernel() {
  static const CastKernel& best = usable_cast_kernels().back();
  return best;
}

}  // namespace ckpt::reshard
