// SPDX-License-Identifier: Apache-2.0
// Signs of life between rank 0 and the others while they work on a task. The
// threads that talk give them (job.cc). Those never wait for a disk, so a rank
// in a long system call is heard, and only a stopped process is silent.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "ckpt/error.h"

namespace ckpt::ranks {

class Pulse {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kBeat = std::chrono::seconds(2);
  static constexpr auto kSilence = std::chrono::seconds(15);
  // A process that did not look for so long did not run, as in a suspended job.
  static constexpr auto kGap = std::chrono::seconds(3);

  Pulse(uint32_t ranks, Clock::time_point now)
      : heard_(ranks), next_(now), looked_(now) {}

  // From then on, a rank's silence is noticed.
  void heard(uint32_t rank, Clock::time_point now) { heard_.at(rank) = now; }
  void forget(uint32_t rank) { heard_.at(rank).reset(); }

  // True if it is time for a sign of this rank.
  bool is_due(Clock::time_point now);
  // A silent rank, if there is one. Call it again and again, each time after
  // hearing all messages that have arrived.
  std::optional<uint32_t> silent(Clock::time_point now);

 private:
  std::vector<std::optional<Clock::time_point>> heard_;
  Clock::time_point next_;
  Clock::time_point looked_;
};

// The error with which a job then fails.
Error silence(uint32_t rank);

}  // namespace ckpt::ranks
