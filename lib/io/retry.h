// SPDX-License-Identifier: Apache-2.0
// System calls that a signal interrupts.
#pragma once

#include <cerrno>

namespace ckpt::io {

// Repeats a system call while a signal interrupts it.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace ckpt::io
