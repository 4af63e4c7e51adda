// SPDX-License-Identifier: Apache-2.0
// Between the thread that works and the one that talks to the other ranks.
#pragma once

#include <atomic>
#include <cstdint>

namespace ckpt::ranks {

class Exchange;

struct Control {
  std::atomic<uint64_t> bytes = 0;    // that were read
  std::atomic<bool> stopped = false;  // someone else failed: give up
  Exchange* exchange = nullptr;       // for tasks that send
};

// Thrown by a task that was stopped: its own work was sound.
struct Stopped {};

}  // namespace ckpt::ranks
