// SPDX-License-Identifier: Apache-2.0
// Tensors of a value tree that is in no file yet: a skeleton's.
#pragma once

#include "lib/pickle/value.h"

namespace ckpt::torch {

// Makes nodes for the call that torch would make for a tensor. Its storage does
// not matter: a writer assigns a new one.
class TensorNodes {
 public:
  // The document must outlive it.
  explicit TensorNodes(pickle::Document& document);
  pickle::Id add() { return document_.add_call(rebuild_, arguments_); }

 private:
  pickle::Document& document_;
  pickle::Id rebuild_;
  pickle::Id arguments_;
};

}  // namespace ckpt::torch
