// SPDX-License-Identifier: Apache-2.0
// Views tensors as the layers of one, and back. Pieces change; bytes don't
// move.
//
//   stack   a (4, 3), b (4, 3)  ─►  (2, 4, 3) along a new axis
//   join    w (4, 3), v (4, 3)  ─►  (8, 3) along one that is there
//   part    (2, 4, 3)           ─►  (4, 3): one index of an axis
//   range   (8, 3)              ─►  (4, 3): some rows
//
// All extents must be located (ckpt::locate).
#pragma once

#include <cstdint>
#include <span>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

// `parts` is not empty, and its tensors have one dtype and one shape (join:
// except along the axis). Name, kind and the like are the first one's. Throws
// unfaithful_error.
Tensor stack(std::span<const Tensor* const> parts, uint32_t axis);
Tensor join(std::span<const Tensor* const> parts, uint32_t axis);

// Throws unfaithful_error for bit-packed types.
Tensor part(const Tensor& whole, uint32_t axis, uint64_t index);
// `count` indices of an axis, from `begin` on; they must exist.
Tensor range(const Tensor& whole, uint32_t axis, uint64_t begin,
             uint64_t count);

}  // namespace ckpt::megatron
