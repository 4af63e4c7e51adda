// SPDX-License-Identifier: Apache-2.0
#include "app/options/rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "lib/interrupt.h"

namespace ckpt::app {
namespace {

using Clock = std::chrono::steady_clock;

// A bucket that holds a quarter of a second and is empty at the start. `free_`
// is when what has passed so far is paid for.
class Bucket {
 public:
  void set_rate(uint64_t rate) {
    const std::lock_guard lock(mutex_);
    rate_ = rate;
    free_ = Clock::now();
  }
  uint64_t rate() const { return rate_; }

  Clock::time_point take(uint64_t bytes) {
    constexpr auto kBurst = std::chrono::milliseconds(250);
    const std::lock_guard lock(mutex_);
    const auto cost = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(static_cast<double>(bytes) /
                                      static_cast<double>(rate_.load())));
    free_ = std::max(free_, Clock::now() - kBurst) + cost;
    return free_;
  }

 private:
  std::atomic<uint64_t> rate_{0};
  std::mutex mutex_;
  Clock::time_point free_;
};
Bucket bucket;

}  // namespace

void set_max_rate(uint64_t bytes_per_second) {
  bucket.set_rate(bytes_per_second);
}

uint64_t max_rate() { return bucket.rate(); }

void pace(uint64_t bytes) {
  if (bucket.rate() == 0) return;
  constexpr auto kSlice = std::chrono::milliseconds(100);
  const Clock::time_point until = bucket.take(bytes);
  while (!interrupted()) {
    const Clock::time_point now = Clock::now();
    if (now >= until) return;
    std::this_thread::sleep_for(std::min<Clock::duration>(kSlice, until - now));
  }
}

}  // namespace ckpt::app
