// SPDX-License-Identifier: Apache-2.0
// Which round a message of an exchange belongs to. Only its two ends agree on
// that, and yet each rank has all its parcels of a round together:
//
//   receiver  offers the first round that it has not begun, and begins none
//             until it has heard what came of the offer
//   sender    takes that round, or the first that it has not begun if that is
//             later, and says so
//
// So no round gets a parcel at an end that has already begun it, and a rank
// begins its rounds in the order of their numbers. (This is Skeen's agreement
// on the order of multicasts, for two receivers.)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace ckpt::ranks {

template <class Parcel>
class Agenda {
 public:
  // Numbers begin with 1.
  uint64_t offer() {
    ++offers_;
    return next_;
  }
  // The sender's side of an offer: the round that the parcel is in.
  uint64_t join(uint64_t offered, Parcel parcel) {
    const uint64_t turn = offered > next_ ? offered : next_;
    rounds_[turn].push_back(parcel);
    return turn;
  }
  // The outcome of an offer; false if it is impossible.
  bool joined(uint64_t turn, Parcel parcel) {
    if (offers_ == 0 || turn < next_) return false;
    --offers_;
    rounds_[turn].push_back(parcel);
    return true;
  }
  void declined() { --offers_; }

  // Begins the next round and returns its parcels, if no more can join it.
  std::optional<std::vector<Parcel>> begin() {
    if (offers_ != 0 || rounds_.empty()) return std::nullopt;
    const auto first = rounds_.begin();
    std::vector<Parcel> parcels = std::move(first->second);
    next_ = first->first + 1;
    rounds_.erase(first);
    return parcels;
  }
  bool empty() const { return rounds_.empty() && offers_ == 0; }

 private:
  uint64_t next_ = 1;  // all lower ones have begun or will have no parcel here
  uint64_t offers_ = 0;
  std::map<uint64_t, std::vector<Parcel>> rounds_;
};

}  // namespace ckpt::ranks
