// SPDX-License-Identifier: Apache-2.0
#include "lib/net/serve_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include "ckpt/error.h"

namespace ckpt::serve {
namespace {

int new_event() {
  const int event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) throw io_error("", "eventfd", errno);
  return event;
}

Response run_slow(const SlowResponse& job) {
  try {
    return job();
  } catch (const std::exception&) {
    // The job itself reports what its user can fix. This is a lack of memory,
    // or a signal, which the loop sees by itself.
    return {.status = 500, .body = nullptr};
  }
}

}  // namespace

ServeQueue::ServeQueue() : event_(new_event()), thread_([this] { work(); }) {}

ServeQueue::~ServeQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  more_.notify_one();
  thread_.join();
  ::close(event_);
}

void ServeQueue::add(uint64_t connection, SlowResponse job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(connection, std::move(job));
  }
  more_.notify_one();
}

void ServeQueue::forget(uint64_t connection) {
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_,
                [&](const auto& job) { return job.first == connection; });
}

std::vector<std::pair<uint64_t, Response>> ServeQueue::take_done() {
  uint64_t count = 0;
  // Empty or not, finished work is in the list.
  [[maybe_unused]] const ssize_t n = ::read(event_, &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

void ServeQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    more_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const auto [connection, job] = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    Response response = run_slow(job);
    lock.lock();
    done_.emplace_back(connection, std::move(response));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(event_, &one, sizeof one);
  }
}

}  // namespace ckpt::serve
