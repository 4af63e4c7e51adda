// SPDX-License-Identifier: Apache-2.0
// Nothing that is there is damaged, but a whole file is gone that an index, or
// the number of ranks, promises. Whoever opens the checkpoint stops as for
// damage; verify calls it incomplete.
#pragma once

#include <utility>

#include "ckpt/error.h"

namespace ckpt {

struct LostFile : Error {
  explicit LostFile(Error error) : Error(std::move(error)) {}
};

}  // namespace ckpt
