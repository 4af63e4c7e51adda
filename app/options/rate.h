// SPDX-License-Identifier: Apache-2.0
// --max-rate: how fast payload moves at most, so that a job beside this one
// keeps its share of the file system.
#pragma once

#include <cstdint>

namespace ckpt::app {

// Bytes a second of the whole process; 0: no limit.
void set_max_rate(uint64_t bytes_per_second);
uint64_t max_rate();

// Waits until `bytes` more may pass. From any thread; a signal ends the wait.
void pace(uint64_t bytes);

}  // namespace ckpt::app
