// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/tensor_nodes.h"

namespace ckpt::torch {

TensorNodes::TensorNodes(pickle::Document& document)
    : document_(document),
      rebuild_(document.add_global("torch._utils", "_rebuild_tensor_v2")) {
  using pickle::Type;
  const pickle::Id storage = document.add_container(
      Type::kTuple,
      {document.add_string("storage"),
       document.add_global("torch", "FloatStorage"), document.add_string("0"),
       document.add_string("cpu"), document.add_int(0)});
  arguments_ =
      document.add_container(Type::kTuple, {document.add_persistent(storage)});
}

}  // namespace ckpt::torch
