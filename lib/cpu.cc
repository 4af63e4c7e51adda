// SPDX-License-Identifier: Apache-2.0
#include "lib/cpu.h"

#include <cstdint>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace ckpt {
namespace {

#if defined(__x86_64__)

constexpr bool cpu_bit(uint32_t word, int index) {
  return ((word >> index) & 1) != 0;
}

// Register states that the kernel saves when it switches processes. Without
// them, an instruction that the processor supports kills the program.
uint32_t kept_states() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Bits as Intel's and AMD's manuals number them: CPUID leaf 1 in ecx, leaf 7 in
// ebx.
CpuFeatures find_cpu_features() {
  CpuFeatures found;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
  found.pclmul = cpu_bit(c, 1);
  found.sse41 = cpu_bit(c, 19);
  const bool xgetbv = cpu_bit(c, 27);
  const uint32_t states = xgetbv ? kept_states() : 0;
  uint32_t leaf7 = 0, rest = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &rest, &d) != 0) leaf7 = b;
  found.sha = cpu_bit(leaf7, 29);
  constexpr uint32_t kYmm = 0x06, kZmm = 0xE6;
  if ((states & kYmm) != kYmm) return found;
  found.fma = cpu_bit(c, 12);
  found.f16c = cpu_bit(c, 29);
  found.avx2 = cpu_bit(leaf7, 5);
  if ((states & kZmm) != kZmm) return found;
  found.avx512f = cpu_bit(leaf7, 16);
  found.avx512dq = cpu_bit(leaf7, 17);
  found.avx512bw = cpu_bit(leaf7, 30);
  found.avx512vl = cpu_bit(leaf7, 31);
  return found;
}

#elif defined(__aarch64__)

CpuFeatures find_cpu_features() {
  const unsigned long has = ::getauxval(AT_HWCAP);
  CpuFeatures found;
  found.pmull = (has & HWCAP_PMULL) != 0;
  found.sha2 = (has & HWCAP_SHA2) != 0;
  return found;
}

#else

CpuFeatures find_cpu_features() { return {}; }

#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = find_cpu_features();
  return features;
}

}  // namespace ckpt
