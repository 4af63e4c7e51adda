// SPDX-License-Identifier: Apache-2.0
// The thread that runs a server's slow answers, in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lib/net/server.h"

namespace ckpt::serve {

class ServeQueue {
 public:
  ServeQueue();
  ~ServeQueue();  // waits for the running one
  ServeQueue(const ServeQueue&) = delete;
  ServeQueue& operator=(const ServeQueue&) = delete;

  void add(uint64_t connection, SlowResponse job);
  // Its client has gone: if it is still waiting, it is not started.
  void forget(uint64_t connection);
  std::vector<std::pair<uint64_t, Response>> take_done();
  // Readable when there is something to take.
  int wakeup() const { return event_; }

 private:
  void work();

  int event_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::pair<uint64_t, SlowResponse>> jobs_;
  std::vector<std::pair<uint64_t, Response>> done_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace ckpt::serve
