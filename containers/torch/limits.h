// SPDX-License-Identifier: Apache-2.0
// What to refuse besides damage.
#pragma once

namespace ckpt::torch {

struct Limits {
  // Refuse opaque values of classes that torch.load(weights_only=True) refuses.
  bool restrict_globals = false;
  // Refuse a rank's file that torch.save wrote under another rank's name.
  bool rank_files = false;
};

}  // namespace ckpt::torch
