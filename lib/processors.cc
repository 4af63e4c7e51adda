// SPDX-License-Identifier: Apache-2.0
#include "lib/processors.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace ckpt {

uint32_t processors() {
  static const uint32_t count = [] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    // Fails where the machine has more processors than the mask has bits.
    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
      return static_cast<uint32_t>(std::max(1, CPU_COUNT(&mask)));
    return std::max(1U, std::thread::hardware_concurrency());
  }();
  return count;
}

}  // namespace ckpt
