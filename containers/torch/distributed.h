// SPDX-License-Identifier: Apache-2.0
// DTensor and ShardedTensor: a rank's part of a tensor, and where in the whole
// it belongs. Private to this room.
//
//   _rebuild_from_type_v2(_rebuild_wrapper_subclass, class,
//                         (class, dtype, GLOBAL size, stride, …), state)
#pragma once

#include "containers/torch/tensors.h"

namespace ckpt::torch {

// Nothing if `type` is neither class. Throws input_error if the local tensor's
// shape is not what its placements say, unfaithful_error for partial sums.
std::optional<TensorRef> as_distributed(const pickle::Document& document,
                                        pickle::Id type, pickle::Id arguments,
                                        pickle::Id state,
                                        const Storages& storages,
                                        std::string_view name);

// The local tensor inside (a plain one), for those who walk the tree.
bool is_distributed_class(const pickle::Document& document, pickle::Id type);

}  // namespace ckpt::torch
