// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/pulse.h"

namespace ckpt::ranks {

bool Pulse::is_due(Clock::time_point now) {
  if (now < next_) return false;
  next_ = now + kBeat;
  return true;
}

std::optional<uint32_t> Pulse::silent(Clock::time_point now) {
  const bool was_away = now - looked_ > kGap;
  looked_ = now;
  for (uint32_t rank = 0; rank < heard_.size(); ++rank) {
    auto& last = heard_[rank];
    if (last && was_away) last = now;
    if (last && now - *last > kSilence) return rank;
  }
  return std::nullopt;
}

Error silence(uint32_t rank) {
  return resource_error({}, "rank {} has given no sign of life for {} s", rank,
                        std::chrono::seconds(Pulse::kSilence).count())
      .with_hint(
          "its process is stopped, or its machine; --resume goes on with "
          "what is done");
}

}  // namespace ckpt::ranks
