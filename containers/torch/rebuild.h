// SPDX-License-Identifier: Apache-2.0
// Tells which of torch's rebuild functions a node calls. Private to this room.
#pragma once

#include <cstdint>
#include <string_view>

#include "containers/torch/tensors.h"

namespace ckpt::torch {

enum class Rebuild : uint8_t {
  kNone,
  kTensor,          // (storage, offset, size, stride)
  kTensorV2,        // (…, requires_grad, hooks[, metadata])
  kTensorV3,        // (…, requires_grad, hooks, dtype[, metadata])
  kQuantized,       // (…, stride, quantizer, requires_grad, hooks)
  kParameter,       // (tensor, requires_grad, hooks)
  kParameterState,  // (tensor, requires_grad, hooks, state)
  kFromType,        // (function, class, arguments, state)
  kWrapper,         // (class, dtype, size, stride, offset, layout, …)
  kSparse,          // (layout, data)
  kMeta,            // (dtype, size, stride, requires_grad)
  kNested,          // (buffer, sizes, strides, offsets)
  kDeviceTensor,    // (tensor, dtype, device, requires_grad)
};

// Of a kGlobal; kNone for anything else.
Rebuild rebuild_of_global(const pickle::Document& document, pickle::Id global);
// Of a kCall (REDUCE) of such a global.
Rebuild rebuild_of(const pickle::Document& document, pickle::Id node);

// as_tensor() for what is inside DTensor and ShardedTensor: neither is
// accepted.
std::optional<TensorRef> as_plain_tensor(const pickle::Document& document,
                                         pickle::Id node,
                                         const Storages& storages,
                                         std::string_view name);

}  // namespace ckpt::torch
