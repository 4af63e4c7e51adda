// SPDX-License-Identifier: Apache-2.0
// Ranks that agree on rounds in pairs, over slow messages, with a device that
// does one round after another.
#include "reshard/ranks/agenda.h"

#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <random>

namespace ckpt::ranks {
namespace {

struct Parcel {
  uint32_t peer = 0;
  uint64_t id = 0;  // of all messages
};

// Words between two ranks arrive in order.
struct Word {
  enum { kGrant, kJoin, kDecline } what = kGrant;
  uint64_t id = 0;
  uint64_t turn = 0;
};

class Job {
 public:
  Job(uint32_t ranks, uint64_t messages, uint32_t seed)
      : random_(seed), ranks_(ranks), left_(messages) {}

  // True if all messages completed, in rounds that agree.
  bool run() {
    for (uint64_t step = 0; step < 200000; ++step) {
      if (left_ == 0 && under_way_ == 0) return agree();
      if (left_ && under_way_ < 4 * ranks_.size() && random_() % 3 == 0)
        grant();
      hear();
      const uint32_t rank = any();
      if (random_() % 2) begin(rank);
      end(any());
    }
    return false;
  }

 private:
  struct Rank {
    Agenda<Parcel> agenda;
    std::map<uint32_t, std::deque<Word>> words;  // by sender
    std::vector<Parcel> running;
    uint64_t begun = 0;
    std::map<uint64_t, uint64_t> rounds;  // by message
  };
  uint32_t any() { return static_cast<uint32_t>(random_() % ranks_.size()); }

  void grant() {
    const uint32_t from = any(), to = any();
    if (from == to) return;
    --left_;
    ++under_way_;
    ranks_[to].words[from].push_back(
        {Word::kGrant, ++ids_, ranks_[from].agenda.offer()});
  }
  void hear() {
    const uint32_t at = any(), from = any();
    Rank& rank = ranks_[at];
    auto& words = rank.words[from];
    if (words.empty()) return;
    const Word word = words.front();
    words.pop_front();
    if (word.what == Word::kDecline) {
      rank.agenda.declined();
      --under_way_;
    } else if (word.what == Word::kJoin) {
      CHECK(rank.agenda.joined(word.turn, {from, word.id}));
    } else if (random_() % 10 == 0) {
      ranks_[from].words[at].push_back({Word::kDecline, word.id, 0});
    } else {
      ranks_[from].words[at].push_back(
          {Word::kJoin, word.id, rank.agenda.join(word.turn, {from, word.id})});
    }
  }
  void begin(uint32_t at) {
    Rank& rank = ranks_[at];
    if (!rank.running.empty()) return;
    auto parcels = rank.agenda.begin();
    if (!parcels) return;
    rank.running = std::move(*parcels);
    ++rank.begun;
    for (const Parcel& parcel : rank.running) {
      rank.rounds[parcel.id] = rank.begun;
      ++begun_[parcel.id];
    }
  }
  // Ends parcels as a group, once each has begun at its other end.
  void end(uint32_t at) {
    Rank& rank = ranks_[at];
    for (const Parcel& parcel : rank.running)
      if (begun_[parcel.id] < 2) return;
    for (const Parcel& parcel : rank.running)
      under_way_ -= ++ended_[parcel.id] == 2;
    rank.running.clear();
  }
  // Parcels that share a round on one of two ranks share one on the other.
  bool agree() const {
    for (const Rank& a : ranks_) {
      for (const Rank& b : ranks_) {
        std::map<uint64_t, uint64_t> there;  // round of b, by round of a
        for (const auto& [id, round] : a.rounds) {
          const auto other = b.rounds.find(id);
          if (other == b.rounds.end()) continue;
          const auto found = there.try_emplace(round, other->second).first;
          if (found->second != other->second) return false;
        }
      }
    }
    return true;
  }

  std::mt19937 random_;
  std::vector<Rank> ranks_;
  uint64_t left_, under_way_ = 0, ids_ = 0;
  std::map<uint64_t, int> begun_, ended_;  // ends of a message
};

}  // namespace

TEST_CASE("agenda: rounds agree at both ends, and all come to an end") {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    CHECK(Job(2 + seed % 7, 150, seed).run());
  }
}

TEST_CASE("agenda: an offer holds back the round, an answer lets it begin") {
  Agenda<Parcel> agenda;
  const uint64_t turn = agenda.join(3, {1, 1});
  CHECK(turn == 3);
  CHECK(agenda.offer() == 1);
  CHECK_FALSE(agenda.begin().has_value());
  CHECK_FALSE(agenda.joined(0, {2, 2}));
  CHECK(agenda.joined(3, {2, 2}));
  const auto round = agenda.begin();
  REQUIRE(round.has_value());
  CHECK(round->size() == 2);
  CHECK(agenda.offer() == 4);
  agenda.declined();
  CHECK(agenda.join(2, {1, 3}) == 4);
  CHECK_FALSE(agenda.joined(5, {1, 4}));  // nobody was asked
}

}  // namespace ckpt::ranks
