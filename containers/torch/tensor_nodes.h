// SPDX-License-Identifier: Apache-2.0
// Tensors of a value tree that no file holds yet: a skeleton's.
#pragma once

#include "lib/pickle/value.h"

namespace ckpt::torch {

// Nodes that are the call that torch would make for a tensor. What its storage
// is does not matter: a writer assigns a new one.
class TensorNodes {
 public:
  // The document has to outlive it.
  explicit TensorNodes(pickle::Document& document);
  pickle::Id add() { return document_.add_call(rebuild_, arguments_); }

 private:
  pickle::Document& document_;
  pickle::Id rebuild_;
  pickle::Id arguments_;
};

}  // namespace ckpt::torch
