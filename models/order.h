// SPDX-License-Identifier: Apache-2.0
// The order of a model's tensors: embeddings, layers by number, the rest.
#pragma once

#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::families {

// Stable: the order within a layer stays.
void sort_tensors(std::vector<Tensor>& tensors);

// The dtype of most weights; f32 if there are none.
DType model_dtype(const std::vector<Tensor>& tensors);

}  // namespace ckpt::families
