// SPDX-License-Identifier: Apache-2.0
// Messages on their way out of a rank, in an exchange (exchange.h).
//
//   free ─► open ──────► sealed ─► asked ─► sending ─► free ┄┄► written
//           workers       └──── the thread that talks ────┘
//
// Slots are few and their memory is given, so that put() waits while all are
// under way. A message has a number from its opening on; what was put before
// a moment is written when all messages with lower numbers than the next are.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "reshard/ranks/bell.h"
#include "reshard/ranks/chunk.h"
#include "reshard/ranks/link.h"
#include "reshard/ranks/note.h"
#include "reshard/ranks/wire.h"

namespace ckpt::ranks {

class Outbox {
 public:
  explicit Outbox(Bell& bell) : bell_(bell) {}

  // Before a task: forgets the last one, which is over and quiet().
  void begin();
  // No more is sent: put() and drain() throw Stopped.
  void stop();

  // The task's side. `memory` of all slots, of which there are more and
  // smaller ones if there are many ranks to send to.
  void open(uint32_t round, std::span<std::byte> memory, uint32_t destinations);
  void put(uint32_t to, uint32_t file, uint64_t offset,
           std::span<const iovec> parts);
  void when_written(std::function<void()> then);
  // Sends what is open; returns when all is written.
  void drain();
  void close();  // the memory is not used any more
  uint64_t bytes() const { return bytes_; }
  uint64_t messages() const { return messages_; }

  // The side of the thread that talks.
  // `wire` may be null when nothing is under way.
  void pump(Link& link, Wire* wire);
  void granted(Link& link, Wire* wire, uint32_t from, const Note& note);
  void written(const Note& note);
  bool quiet() const { return sending_.empty() && empty_.empty(); }

 private:
  enum class State : uint8_t { kFree, kOpen, kSealed, kAsked, kSending };
  struct Slot {
    State state = State::kFree;
    uint32_t to = 0;
    uint32_t copying = 0;  // workers that fill it
    uint64_t id = 0;
    std::chrono::steady_clock::time_point opened;
    Chunk chunk{{}};
  };
  struct Sending {
    Slot* slot = nullptr;
    Wire::Ticket ticket = 0;
  };
  struct Action {
    uint64_t before = 0;  // when all messages below are written
    std::function<void()> run;
  };

  // These have the lock.
  Slot& open_slot(uint32_t to, std::unique_lock<std::mutex>& lock);
  Slot* find(State state, uint32_t to);
  void seal(Slot& slot);
  void seal_for_room();
  void check() const;
  std::vector<Action> due();

  void run_due();
  void ask(Link& link);
  void decline(Link& link, uint32_t from, const Note& note);

  Bell& bell_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  uint32_t round_ = 0;
  bool stopped_ = false;
  uint64_t next_id_ = 0;
  std::set<uint64_t> unwritten_;
  std::deque<Action> actions_;
  uint64_t bytes_ = 0;
  uint64_t messages_ = 0;
  // Of the thread that talks alone: what it sends, and answers to ranks that
  // granted what is not sent any more.
  std::vector<Sending> sending_;
  std::vector<Link::Ticket> empty_;
};

}  // namespace ckpt::ranks
