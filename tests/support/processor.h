// SPDX-License-Identifier: Apache-2.0
// The clock says how busy the machine is; this says what the process did.
#pragma once

#include <ctime>

namespace ckpt::test {

// Seconds of processor that all threads have taken.
inline double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

}  // namespace ckpt::test
