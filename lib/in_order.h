// SPDX-License-Identifier: Apache-2.0
// Many small reads at once, with their results in order: the headers of tens of
// thousands of files.
//
//   make(0) make(1) make(2) …   on up to kReaders threads, a window ahead
//      └───────┴───────┴──────► take(0) take(1) …   on the caller's thread
//
// A header is a few KiB, and a cold disk or a server takes a hundred times
// longer to deliver it than we take to look at it. So many requests are in
// flight, whatever the number of processors. The window bounds what is made and
// not yet taken. The error thrown is always the first one in order.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lib/parallel.h"

namespace ckpt {

inline constexpr size_t kReaders = 32;

namespace detail {

// Numbers are handed out in runs, since a hand-over costs as much as a small
// read. A small count gets shorter runs, so that every reader has something to
// do.
constexpr size_t kMostInRun = 8;
constexpr size_t kWindow = 2 * kReaders;  // runs

template <class Made>
class InOrder {
 public:
  explicit InOrder(size_t count)
      : count_(count),
        in_run_(std::clamp<size_t>(count / kReaders, 1, kMostInRun)),
        runs_((count + in_run_ - 1) / in_run_) {}

  template <class Make, class Take>
  void run(Make& make, Take& take) {
    std::vector<std::jthread> readers;
    const Stop stop{*this};
    for (size_t t = 0; t < std::min(kReaders, runs_); ++t)
      if (!try_thread(readers, [&] { fill(make); })) break;
    for (size_t i = 0; readers.empty() && i < count_; ++i) take(i, make(i));
    if (readers.empty()) return;
    for (size_t r = 0; r < runs_; ++r) {
      Run run = wait_for(r);
      for (size_t i = 0; i < run.made.size(); ++i)
        take(r * in_run_ + i, std::move(run.made[i]));
      if (run.error) std::rethrow_exception(run.error);
    }
  }

 private:
  struct Run {
    std::vector<Made> made;
    std::exception_ptr error;  // of the item after those
    bool ready = false;
  };
  // Runs before the threads are joined, even if `take` throws.
  struct Stop {
    InOrder& all;
    ~Stop() { all.stop(); }
  };

  template <class Make>
  void fill(Make& make) {
    for (size_t r = next_++; r < runs_ && wait_for_room(r); r = next_++) {
      Run run;
      try {
        run.made.reserve(in_run_);
        const size_t end = std::min(count_, (r + 1) * in_run_);
        for (size_t i = r * in_run_; i < end; ++i) run.made.push_back(make(i));
      } catch (...) {
        run.error = std::current_exception();
      }
      run.ready = true;
      const std::lock_guard lock(mutex_);
      ring_[r % kWindow] = std::move(run);
      if (r == taken_) ready_.notify_one();
    }
  }

  bool wait_for_room(size_t r) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return stopped_ || r < taken_ + kWindow; });
    return !stopped_;
  }

  Run wait_for(size_t r) {
    std::unique_lock lock(mutex_);
    Run& slot = ring_[r % kWindow];
    ready_.wait(lock, [&] { return slot.ready; });
    Run run = std::exchange(slot, Run());
    taken_ = r + 1;
    if (r % (kWindow / 4) == 0) room_.notify_all();
    return run;
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    room_.notify_all();
  }

  const size_t count_;
  const size_t in_run_;
  const size_t runs_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable ready_, room_;
  Run ring_[kWindow];  // run r at r % kWindow
  size_t taken_ = 0;
  bool stopped_ = false;
};

}  // namespace detail

// Calls `make` on many threads and `take(i, made)` on this one, for each i
// below `count`. A single item is made here, without a thread.
template <class Made, class Make, class Take>
void in_order(size_t count, Make make, Take take) {
  if (count > 1) {
    detail::InOrder<Made>(count).run(make, take);
    return;
  }
  for (size_t i = 0; i < count; ++i) take(i, make(i));
}

}  // namespace ckpt
