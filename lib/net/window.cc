// SPDX-License-Identifier: Apache-2.0
#include "lib/net/window.h"

#include <algorithm>

namespace ckpt::net {
namespace {

constexpr size_t kRest = 8;       // epochs, after a step without gain
constexpr size_t kLongRest = 32;  // after a refusal
constexpr double kGain = 1.05;
// Shorter epochs tell more about chance than about the wire.
constexpr auto kLeastEpoch = std::chrono::milliseconds(20);
// Large requests last longer than this, so new connections have had time to
// begin.
constexpr auto kMostEpoch = std::chrono::milliseconds(400);

}  // namespace

Window::Window(size_t most, size_t first)
    : most_(std::max<size_t>(1, most)), size_(std::min(most_, first)) {}

void Window::began(Clock::time_point now, size_t running) {
  if (running <= 1) next_epoch(now);
  full_ |= running >= size_;
}

void Window::next_epoch(Clock::time_point now) {
  begin_ = now;
  bytes_ = 0;
  ended_ = 0;
  full_ = false;
}

void Window::ended(Clock::time_point now, size_t places) {
  ended_ += places;
  if (ended_ >= size_ && now - begin_ >= kLeastEpoch) judge(now);
}

void Window::look(Clock::time_point now, size_t running) {
  full_ |= running >= size_;
  if (now - begin_ >= kMostEpoch) judge(now);
}

void Window::judge(Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  // A window that was never full tells nothing about its size.
  if (full_) step(static_cast<double>(bytes_.load()) / seconds);
  next_epoch(now);
}

void Window::step(double rate) {
  if (rest_ != 0) {
    --rest_;
    rate_ = rate;
    return;
  }
  const bool gained = before_ == 0 || rate > rate_ * kGain;
  if (!gained) {
    size_ = before_;
    before_ = 0;
    doubling_ = false;
    rest_ = kRest;
    return;
  }
  rate_ = rate;
  before_ = size_;
  size_ = std::min(most_, doubling_ ? 2 * size_ : size_ + 2);
  if (size_ == before_) before_ = 0;
}

void Window::refused(Clock::time_point now, Clock::time_point began) {
  // What began before the cut was part of the excess.
  if (began < cut_) return;
  cut_ = now;
  size_ = std::max<size_t>(1, size_ / 2);
  before_ = 0;
  doubling_ = false;
  rest_ = kLongRest;
  next_epoch(now);
}

}  // namespace ckpt::net
