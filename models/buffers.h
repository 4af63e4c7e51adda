// SPDX-License-Identifier: Apache-2.0
// Buffers that a family's `ignore` lists. They are not parameters: their values
// follow from the model's numbers, which is proven from their bytes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::families {

// True for names of what `ignore` may hold: rotary frequencies, causal masks.
bool is_buffer_name(std::string_view name);

// The required value of each element of a buffer.
struct BufferProof {
  std::function<bool(const Dims& at, double value)> holds;
  std::string should;  // "a rotary frequency of base 10000"
};

// Nothing for a name, shape or dtype that no such buffer has. `theta`: the base
// of rotary frequencies.
std::optional<BufferProof> buffer_proof(const Tensor& tensor, double theta);

// A buffer that a translation left out and that is not proven yet: an entry of
// Catalog::redundant with neither a value nor another tensor.
bool is_unproven(const Redundant& redundant);

}  // namespace ckpt::families
