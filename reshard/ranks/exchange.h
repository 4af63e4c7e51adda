// SPDX-License-Identifier: Apache-2.0
// --exchange send, two-stage loading: each byte is read by one rank, each file
// is written by one rank, and what they need of each other goes in messages of
// bounded size.
//
//   reader: worker ─ Output ─ Outbox ──────► Inbox ─ writer thread: its owner
//                                │  kAsk  ►    │
//                                │  ◄ kGrant   │   has begun to receive
//                                │  payload ►  │
//                                │  ◄ kWritten │   journal: item is done
//   rank 0  ◄ kDrained (all of mine is written)      kClose (all of all is) ►
//
// Workers and the writer never talk: the thread that does (job.cc) calls
// pump(), and hear() for each message.
//
// Why nothing waits forever:
// - The thread that talks never blocks: it posts and asks what is done.
// - A grant says that a slot is free and its receive begun, so payload never
//   waits for memory, and each grant is answered, after a stop by no bytes.
// - Payload that both sides agreed on arrives: messages of the link by
//   themselves, rounds between GPUs as rounds.h argues.
// - A slot that has its payload waits for the disk alone: the writer sends
//   nothing. So slots become free, asks are granted in their order, outgoing
//   slots become free, put() goes on. There is no circle: what is received
//   never waits for what is to be sent.
// - A rank is not done (kDone) while something is under way to or from it. If
//   another rank never answers, rank 0 loses patience and ends the job.
// - Each wait looks for a stop and for signals ten times a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "reshard/carrier.h"
#include "reshard/ranks/inbox.h"
#include "reshard/ranks/outbox.h"
#include "reshard/ranks/wire.h"

namespace ckpt::ranks {

// Messages of this size unless --exchange-buffer says another.
inline constexpr uint64_t kExchangeBuffer = uint64_t{4} << 20;
inline constexpr uint64_t kLeastExchangeBuffer = uint64_t{64} << 10;
// A rank has as many bytes as so many of them.
inline constexpr uint64_t kExchangeSlots = 8 + Inbox::kSlots;

// The size for a run of that much memory, of which exchanges take at most
// half. `asked`: zero for the default. Throws a resource_error if it does not
// fit.
uint64_t exchange_buffer(uint64_t asked, uint64_t max_mem);

class Exchange : public reshard::Carrier {
 public:
  struct Setup {
    uint32_t rank = 0;
    uint64_t buffer = 0;           // bytes of each of kExchangeSlots
    std::vector<uint32_t> owners;  // rank that writes a file; kNone: no matter
    std::string gpus;  // where payload goes from GPU to GPU: rounds.h; else ""
    Inbox::Setup in;   // `memory` is open()'s
  };
  struct Traffic {
    uint64_t sent = 0, received = 0;  // bytes of payload
    uint64_t messages = 0;            // that were sent with payload
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
  // Ends what open() began, however the task ended. Returns what the writer
  // threw.
  std::exception_ptr end();

  // The side of the thread that talks. begin() is called before each task.
  void begin();
  void stop();
  // False if the message is about something else.
  bool hear(Link& link, const Message& message);
  // True if a round between GPUs went on: the next step is soon.
  bool pump(Link& link);
  // Nothing is under way.
  bool quiet() const { return outbox_.quiet() && inbox_.quiet(); }
  bool is_open() const { return open_; }
  // Waits for something to do, and not longer than that. True if there is.
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
  Setup setup_;         // of the task's side
  bool keeps_ = false;  // a journal
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
