// SPDX-License-Identifier: Apache-2.0
// What rank 0 waits for while all work on a task: who has answered, what failed
// first, who gives no sign of life.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/progress.h"
#include "reshard/ranks/link.h"
#include "reshard/ranks/pulse.h"

namespace ckpt::ranks {

// How long a rank may take to notice that it must stop: a block of 2 MiB, or
// the time to unpack a stream up to where it is needed.
inline constexpr auto kPatience = std::chrono::seconds(20);

class Answers {
 public:
  Answers(Link& link, const Progress& progress);

  // `bytes`: the result, or a failure from pack_failure.
  void answer(uint32_t rank, bool good, std::string bytes);
  void fail(uint32_t rank, std::string failure);
  // Any message is a sign of life.
  void receive(const Message& message);
  void heard(uint32_t rank);
  // Sends rank 0's signs of life when they are due.
  void beat();
  // Notices when those of others are missing. Call it when no message is left.
  void watch();

  // Tells those who have not answered that it is over.
  void stop();
  bool stopping() const { return stopped_.has_value(); }
  // True if they had time to stop, or if the rest are silent.
  bool out_of_patience() const;

  bool complete() const;
  bool answered(uint32_t rank) const { return answered_.at(rank); }
  // The rank, and what it said.
  const std::optional<std::pair<uint32_t, std::string>>& failure() const {
    return failure_;
  }
  std::vector<std::string> take() { return std::move(results_); }

 private:
  using Clock = Pulse::Clock;
  Link& link_;
  const Progress& progress_;
  std::vector<std::string> results_;
  std::vector<bool> answered_;
  std::vector<bool> silent_;
  Pulse pulse_;
  std::optional<std::pair<uint32_t, std::string>> failure_;
  std::optional<Clock::time_point> stopped_;
};

}  // namespace ckpt::ranks
