// SPDX-License-Identifier: Apache-2.0
// Stored elements -> logical elements, in place: byte order, the sign flips
// that torch keeps as the neg and conj bits of a view, and the one that some
// dialects add to the weights of norms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ckpt/catalog.h"

namespace ckpt::reshard {

// `bytes` holds whole elements. `transform` is a set of ckpt::Transform bits.
// Throws unfaithful_error for a negation of a type that has no sign bit.
void apply_transform(uint8_t transform, DType dtype,
                     std::span<std::byte> bytes);

}  // namespace ckpt::reshard
