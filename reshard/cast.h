// SPDX-License-Identifier: Apache-2.0
// Conversion between element types, exactly as PyTorch's .to() rounds. From
// float to float by loops of our own (cast_kernel.h); integers and complex
// numbers by libtorch itself, in the optional torch module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ckpt/dtype.h"

namespace ckpt::reshard {

// Copies and casts from float to float don't need the module; the first other
// cast opens it. Can be called from many threads, and fits RunOptions::cast.
class Caster {
 public:
  // Throws before any work is done what the call below would throw: a
  // resource_error if the module is needed and missing, an unfaithful_error
  // that names `tensor` if torch has no such cast or it would drop imaginary
  // parts.
  void check(DType from, DType to, const std::string& tensor) const;

  // Converts `count` elements; the ranges don't overlap, and may begin at any
  // byte.
  void operator()(DType from, DType to, const std::byte* in, std::byte* out,
                  uint64_t count) const;
};

}  // namespace ckpt::reshard
