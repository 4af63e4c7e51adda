// SPDX-License-Identifier: Apache-2.0
// Wakes the thread that talks to the other ranks when there is something to
// say; otherwise it looks for messages now and then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace ckpt::ranks {

class Bell {
 public:
  void ring() {
    {
      const std::lock_guard lock(mutex_);
      rung_ = true;
    }
    heard_.notify_one();
  }
  // Returns when it rings, or after `most`; true if it rang.
  bool wait(std::chrono::microseconds most) {
    std::unique_lock lock(mutex_);
    const bool rang = heard_.wait_for(lock, most, [this] { return rung_; });
    rung_ = false;
    return rang;
  }

 private:
  std::mutex mutex_;
  std::condition_variable heard_;
  bool rung_ = false;
};

}  // namespace ckpt::ranks
