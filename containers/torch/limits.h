// SPDX-License-Identifier: Apache-2.0
// What is refused beyond what is not whole.
#pragma once

namespace ckpt::torch {

struct Limits {
  // Opaque values of classes that torch.load(weights_only=True) refuses.
  bool restrict_globals = false;
};

}  // namespace ckpt::torch
