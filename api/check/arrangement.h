// SPDX-License-Identifier: Apache-2.0
// Why two tensors differ that should be equal: mistakes of conversions fit all
// shapes, and the loss shows them days later.
#pragma once

#include <optional>
#include <string>

#include "api/engine.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

// The rearrangement of x (in catalog a) that gives y (in b), bit for bit:
//
//   transposed · rotary rows in pairs or half-split · q, k and v grouped or
//   one after the other, or in another order · gate and up swapped · one added
//
// "A in pairs of rotary rows, B half-split (8 heads)". Nothing if none does.
// Reads a few rows for most candidates, and both tensors completely for one
// that fits.
std::optional<std::string> arrangement(const Catalog& a, const Tensor& x,
                                       const Catalog& b, const Tensor& y,
                                       const Engine& engine);

}  // namespace ckpt::library
