// SPDX-License-Identifier: Apache-2.0
// Shared by the thread that works and the one that talks to the other ranks.
#pragma once

#include <atomic>
#include <cstdint>

namespace ckpt::ranks {

class Exchange;

struct Control {
  std::atomic<uint64_t> bytes = 0;    // read so far
  std::atomic<bool> stopped = false;  // another rank failed: give up
  Exchange* exchange = nullptr;       // for tasks that send
};

// Thrown by a task that was stopped although its own work was sound.
struct Stopped {};

}  // namespace ckpt::ranks
