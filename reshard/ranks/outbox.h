// SPDX-License-Identifier: Apache-2.0
// Messages on their way out of a rank in an exchange (exchange.h).
//
//   free ─► open ──────► sealed ─► asked ─► sending ─► free ┄┄► written
//           workers       └──── the thread that talks ────┘
//
// Slots are few and their memory is fixed, so put() waits while all are in
// progress. A message has a number from when it is opened; everything put
// before a given moment is written once all messages with numbers below the
// next one are.
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

  // Called before a task: forgets the last one, which is over and quiet().
  void begin();
  // Stops sending: put() and drain() throw Stopped.
  void stop();

  // The task's side. `memory` is for all slots; if there are many ranks to send
  // to, there are more and smaller ones.
  void open(uint32_t round, std::span<std::byte> memory, uint32_t destinations);
  void put(uint32_t to, uint32_t file, uint64_t offset,
           std::span<const iovec> parts);
  void when_written(std::function<void()> then);
  // Sends open messages; returns when all are written.
  void drain();
  void close();  // the memory is no longer used
  uint64_t bytes() const { return bytes_; }
  uint64_t messages() const { return messages_; }

  // The talking thread's side. `wire` may be null when nothing is in progress.
  void pump(Link& link, Wire* wire);
  void granted(Link& link, Wire* wire, uint32_t from, const Note& note);
  void written(const Note& note);
  bool quiet() const { return sending_.empty() && empty_.empty(); }

 private:
  enum class State : uint8_t { kFree, kOpen, kSealed, kAsked, kSending };
  struct Slot {
    State state = State::kFree;
    uint32_t to = 0;
    uint32_t copying = 0;  // workers filling it
    uint64_t id = 0;
    std::chrono::steady_clock::time_point opened;
    Chunk chunk{{}};
  };
  struct Sending {
    Slot* slot = nullptr;
    Wire::Ticket ticket = 0;
  };
  struct Action {
    uint64_t before = 0;  // when all lower messages are written
    std::function<void()> run;
  };

  // Called with the lock held.
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
  // Only for the talking thread: what it sends, and answers to ranks that
  // granted what is no longer sent.
  std::vector<Sending> sending_;
  std::vector<Link::Ticket> empty_;
};

}  // namespace ckpt::ranks
