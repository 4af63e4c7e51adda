// SPDX-License-Identifier: Apache-2.0
// What the torch module computes once elements are doubles. Plain loops that
// compilers turn into vector code; no torch here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "reshard/torch/abi.h"

namespace ckpt::torch_module {

void add_stats(std::span<const double> values, CkptTorchStats& stats);

struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

// Element by element; both have the same number of them.
void compare_real(std::span<const double> a, std::span<const double> b,
                  const Tolerance& tolerance, CkptTorchComparison& total);

// `n` elements of one or two doubles (`step`): a real number has no imaginary
// part.
void compare_complex(std::span<const double> a, size_t step_a,
                     std::span<const double> b, size_t step_b, uint64_t n,
                     const Tolerance& tolerance, CkptTorchComparison& total);

// 64-bit integers that differ may be equal as doubles.
void compare_wide(const int64_t* a, const int64_t* b, uint64_t n,
                  const Tolerance& tolerance, CkptTorchComparison& total);
void compare_wide(const uint64_t* a, const uint64_t* b, uint64_t n,
                  const Tolerance& tolerance, CkptTorchComparison& total);

}  // namespace ckpt::torch_module
