// SPDX-License-Identifier: Apache-2.0
// Conversion between element types, exactly as PyTorch's .to() rounds. Our own
// loops (cast_kernel.h) cast between floats; libtorch itself, in the optional
// torch module, casts integers and complex numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ckpt/dtype.h"

namespace ckpt::reshard {

// Copies and casts between floats don't need the module; the first other cast
// opens it. May be called from many threads; fits RunOptions::cast.
class Caster {
 public:
  // Throws, before any work is done, what the call below would throw:
  // resource_error if the module is needed and missing, unfaithful_error naming
  // `tensor` if torch has no such cast or the cast would drop imaginary parts.
  void check(DType from, DType to, const std::string& tensor) const;

  // Converts `count` elements; the ranges don't overlap, and may begin at any
  // byte.
  void operator()(DType from, DType to, const std::byte* in, std::byte* out,
                  uint64_t count) const;
};

}  // namespace ckpt::reshard
