// SPDX-License-Identifier: Apache-2.0
// What to refuse besides damage.
#pragma once

namespace ckpt::torch {

struct Limits {
  // Refuse opaque values of classes that torch.load(weights_only=True) refuses.
  bool restrict_globals = false;
};

}  // namespace ckpt::torch
