// SPDX-License-Identifier: Apache-2.0
// --exchange send, two-stage loading: each byte is read by one rank, each file
// is written by one rank, and what they need from each other goes in messages
// of bounded size.
//
//   reader: worker ─ Output ─ Outbox ──────► Inbox ─ writer thread: its owner
//                                │  kAsk  ►    │
//                                │  ◄ kGrant   │   has begun to receive
//                                │  payload ►  │
//                                │  ◄ kWritten │   journal: item is done
//   rank 0  ◄ kDrained (all of mine is written)      kClose (all of all is) ►
//
// Workers and the writer never talk to other ranks. The thread that does
// (job.cc) calls pump(), and hear() for each message.
//
// Why nothing waits forever:
// - The thread that talks never blocks: it posts, and polls what is done.
// - A grant says that a slot is free and its receive has begun, so payload
//   never waits for memory. Each grant is answered, after a stop with no bytes.
// - Payload that both sides agreed on arrives: messages of the link by
//   themselves, rounds between GPUs as rounds.h argues.
// - A slot that has its payload waits only for the disk: the writer sends
//   nothing. So slots become free, asks are granted in order, outgoing slots
//   become free, and put() continues. There is no circle: receiving never waits
//   for sending.
// - A rank is not done (kDone) while something is in progress to or from it. If
//   another rank never answers, rank 0 loses patience and ends the job.
// - Each wait checks for a stop and for signals ten times a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "reshard/ranks/inbox.h"
#include "reshard/ranks/outbox.h"
#include "reshard/ranks/wire.h"
#include "reshard/run/carrier.h"

namespace ckpt::ranks {

// Messages of this size unless --exchange-buffer says another.
inline constexpr uint64_t kExchangeBuffer = uint64_t{4} << 20;
inline constexpr uint64_t kLeastExchangeBuffer = uint64_t{64} << 10;
// A rank has memory for this many of them.
inline constexpr uint64_t kExchangeSlots = 8 + Inbox::kSlots;

// The message size for a run with that much memory, of which exchanges take at
// most half. `asked`: zero for the default. Throws a resource_error if it does
// not fit.
uint64_t exchange_buffer(uint64_t asked, uint64_t max_mem);

class Exchange : public reshard::Carrier {
 public:
  struct Setup {
    uint32_t rank = 0;
    uint64_t buffer = 0;           // bytes of each of kExchangeSlots
    std::vector<uint32_t> owners;  // rank writing a file; kNone: doesn't matter
    std::string gpus;  // if payload goes from GPU to GPU (rounds.h); else ""
    Inbox::Setup in;   // open() sets `memory`
  };
  struct Traffic {
    uint64_t sent = 0, received = 0;  // bytes of payload
    uint64_t messages = 0;            // sent with payload
    uint64_t rounds = 0;              // between GPUs
  };

  Exchange() : outbox_(bell_), inbox_(bell_) {}

  // The task's side.
  void open(Setup setup);
  bool takes(uint32_t file) const override;
  void deliver(uint32_t file, uint64_t offset,
               std::span<const iovec> parts) override;
  void when_written(std::function<void()> then) override;
  void finish() override;
  Traffic traffic() const;
  // Ends what open() began, however the task ended. Returns the writer's
  // exception.
  std::exception_ptr end();

  // The talking thread's side. begin() is called before each task.
  void begin();
  void stop();
  // False if the message is about something else.
  bool hear(Link& link, const Message& message);
  // True if a round between GPUs made progress: the next step comes soon.
  bool pump(Link& link);
  // True if nothing is in progress.
  bool quiet() const { return outbox_.quiet() && inbox_.quiet(); }
  bool is_open() const { return open_; }
  // Waits for something to do, at most that long. True if there is something.
  bool rest(std::chrono::microseconds most) { return bell_.wait(most); }
  void ring() { bell_.ring(); }

 private:
  void tell(Link& link);
  std::shared_ptr<Wire> make_wire() const;
  std::shared_ptr<Wire> wire() const;
  void set_wire(std::shared_ptr<Wire> wire);

  Bell bell_;
  std::shared_ptr<Wire> wire_;  // from open() until all is over; mutex_
  Outbox outbox_;
  Inbox inbox_;
  Setup setup_;         // for the task's side
  bool keeps_ = false;  // keeps a journal
  uint64_t rounds_ = 0;
  std::atomic<bool> open_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t round_ = 0;
  bool stopped_ = false;
  bool drained_ = false;  // this rank
  bool told_ = false;
  bool closed_ = false;                 // all ranks
  std::map<uint32_t, uint32_t> count_;  // on rank 0: drained ranks, by round
};

}  // namespace ckpt::ranks
