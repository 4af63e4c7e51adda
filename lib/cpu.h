// SPDX-License-Identifier: Apache-2.0
// What this processor and its kernel support, for code with faster loops for
// some processors. Doesn't use __builtin_cpu_supports: zig's runtime has a stub
// that says no to everything, and g++ 11 does not know f16c.
#pragma once

namespace ckpt {

struct CpuFeatures {
  bool sse41 = false;
  bool pclmul = false;
  bool sha = false;
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512dq = false;
  bool avx512vl = false;
  // aarch64, which always has vectors (NEON).
  bool pmull = false;
  bool sha2 = false;
};

// Detected once. All false on other processors.
const CpuFeatures& cpu_features();

}  // namespace ckpt
