// SPDX-License-Identifier: Apache-2.0
// --max-rate: limits how fast payload moves, so that other jobs keep their
// share of the file system.
#pragma once

#include <cstdint>

namespace ckpt::app {

// Bytes a second of the whole process; 0: no limit.
void set_max_rate(uint64_t bytes_per_second);
uint64_t max_rate();

// Waits until `bytes` more may pass. Callable from any thread; a signal ends
// the wait.
void pace(uint64_t bytes);

}  // namespace ckpt::app
