// SPDX-License-Identifier: Apache-2.0
// How many requests to one host run at once.
//
//   doubles   while twice as many move more bytes a second
//   stays     when they don't; now and then a few more are tried
//   halves    when the host says that it is too much (429, 503), once for all
//             that ran together
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ckpt::net {

class Window {
 public:
  using Clock = std::chrono::steady_clock;

  // Between 1 and `most`; `first` of them to begin with.
  Window(size_t most, size_t first);

  size_t size() const { return size_; }
  // A request began, with `running` in flight, itself included.
  void began(Clock::time_point now, size_t running);
  // Bytes were received or sent: a large request tells more while it runs than
  // at its end. The only one that any thread may call.
  void moved(uint64_t bytes) { bytes_ += bytes; }
  // Called now and then, with `running` in flight.
  void look(Clock::time_point now, size_t running);
  // A request ended that took so many places of the window.
  void ended(Clock::time_point now, size_t places = 1);
  // The host refused one begun at `began`: it has too many.
  void refused(Clock::time_point now, Clock::time_point began);

 private:
  void next_epoch(Clock::time_point now);
  void judge(Clock::time_point now);
  void step(double rate);

  size_t most_;
  size_t size_;
  size_t before_ = 0;      // the size before the last step; 0: none
  double rate_ = 0;        // bytes per second at that size
  bool doubling_ = true;   // until the first step that gained nothing
  size_t rest_ = 0;        // epochs until the next step
  Clock::time_point cut_;  // when it was last halved
  // Of the epoch, which lasts as many requests as run at once.
  Clock::time_point begin_;
  std::atomic<uint64_t> bytes_ = 0;
  size_t ended_ = 0;   // places
  bool full_ = false;  // the whole window was used
};

}  // namespace ckpt::net
