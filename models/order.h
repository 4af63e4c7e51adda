// SPDX-License-Identifier: Apache-2.0
// The order of a model's tensors: embeddings, layers by number, the rest.
#pragma once

#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::families {

// Stable: within a layer the order stays.
void sort_tensors(std::vector<Tensor>& tensors);

// The dtype that most of the weights have; f32 of none.
DType model_dtype(const std::vector<Tensor>& tensors);

}  // namespace ckpt::families
