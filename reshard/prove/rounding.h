// SPDX-License-Identifier: Apache-2.0
// How far weights are from their fp32 main weights.
//
// A weight is its main weight, rounded to nearest. Two kinds of training leave
// something else, and are as sound: stochastic rounding takes either neighbour,
// and weights that live in fp8 or fp4 are saved as what their codes stand for.
// Values of another parameter, or of other elements of the same one, are
// neither.
//
//   what the weights are   unlike, of all   sum |w - m| / sum |m|
//   rounded to nearest            0               2^-10
//   rounded at random           about 1/2         2^-9
//   from fp8                   nearly all         2^-6 … 2^-4
//   from fp4                   nearly all         about 2^-3
//   of other elements          nearly all         about 1.4
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ckpt/dtype.h"

namespace ckpt::reshard {

struct Rounding {
  uint64_t count = 0;
  uint64_t unlike = 0;  // not rounded to nearest
  uint64_t far = 0;     // of those: what no rounding to 8 bits explains
  double distance = 0;  // of the unlike: sum |w - m|
  double weight = 0;    // of the unlike: sum |m|
  std::optional<uint64_t> first_far;  // in what was measured last

  void add(const Rounding& other);
  bool holds() const;
};

// `exact` is f32; `rounded` is f32, bf16 or f16, and as many elements.
Rounding measure(std::span<const std::byte> exact,
                 std::span<const std::byte> rounded, DType dtype);

}  // namespace ckpt::reshard
