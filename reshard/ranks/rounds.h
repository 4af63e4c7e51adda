// SPDX-License-Identifier: Apache-2.0
// Payload of an exchange from GPU to GPU: slots are pinned memory, and their
// content goes up to this rank's GPU, by NCCL to the receiver's, and down again
// there.
//
//   receiver ─ kGrant, no earlier than round r ─► sender
//            ◄─ kJoin, in round s ≥ r, n bytes ─┘        (agenda.h)
//   both      begin round s: one group of all their sends and receives in it
//
// NCCL runs the groups of a communicator one after another, and a group blocks
// its rank until all of its parcels have moved. So ranks that begin groups in
// any order can wait for each other in a circle. Why these don't:
// - Rounds have numbers, a rank begins its own in that order, and a parcel is
//   in the same round at both ends.
// - Take the lowest round that is not yet done somewhere. All ranks with
//   parcels in it are done with the ones before it, and begin it as soon as
//   their offers are answered. Answers never wait for payload: the thread that
//   talks gives them. Then each of its parcels has begun at both ends, and NCCL
//   moves them all.
// - Only ranks with a parcel in a round take part. It is an all-to-all with
//   possibly empty parts, for which NCCL is made.
//
// If something fails, NCCL or kStop reports it. After a stop, what was agreed
// on is still carried out, because the other end may have begun it; if that
// takes longer than kGrace, the waiting ends. The communicator and the memory
// are freed with this object, after their last user.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reshard/cuda/load.h"
#include "reshard/ranks/agenda.h"
#include "reshard/ranks/wire.h"

namespace ckpt::ranks {

class Rounds : public Wire {
 public:
  struct Setup {
    uint32_t round = 0;  // unique in the job
    uint32_t rank = 0;
    uint32_t size = 0;
    std::string id;      // CudaPeers::make_id
    uint64_t bytes = 0;  // of memory
    // Called once, in the thread that talks, unless it was stopped earlier.
    std::function<void()> on_failure;
  };
  Rounds(const reshard::CudaModule& module, Setup setup);

  std::span<std::byte> memory() override { return memory_; }
  Ticket grant(Link& link, uint32_t to, const Note& note,
               std::span<std::byte> room) override;
  Ticket give(Link& link, uint32_t to, const Note& grant,
              std::span<const std::byte> bytes) override;
  std::optional<uint64_t> done(Link& link, Ticket ticket) override;
  void joined(uint32_t from, const Note& note) override;
  bool pump() override;
  void stop() override { stopped_ = true; }
  std::exception_ptr failure() const override;
  uint64_t rounds() const override { return rounds_; }

 private:
  struct Parcel {
    uint32_t peer = 0;
    bool out = false;
    uint64_t id = 0;  // of the sender's message
    uint64_t at = 0;  // of memory_
    uint64_t bytes = 0;
    Ticket ticket = 0;
  };
  // Time in which this process ran.
  using Time = std::chrono::steady_clock::duration;
  static constexpr std::chrono::seconds kGrace{5};
  // The ranks arrive one by one, as they get their tasks.
  static constexpr std::chrono::seconds kMeeting{120};
  static constexpr std::chrono::seconds kRound{60};

  Ticket new_ticket();
  uint64_t place_of(const std::byte* at) const;
  void settle(const Parcel& parcel, uint64_t bytes);
  bool go_on();
  void begin(std::vector<Parcel> parcels);
  void check_time();
  void fail();

  Setup setup_;
  std::optional<reshard::CudaPeers> peers_;
  std::span<std::byte> memory_;
  Agenda<Parcel> agenda_;
  std::map<Ticket, std::optional<uint64_t>> tickets_;
  std::map<uint32_t, Parcel> offered_;  // by channel
  std::vector<Parcel> running_;         // of the round in progress
  bool busy_ = true;                    // first, the ranks meet
  bool met_ = false;
  Ticket next_ticket_ = 1;
  std::chrono::steady_clock::time_point looked_;
  Time waited_{};  // for what is in progress
  Time since_stop_{};
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;  // before failed_
  std::atomic<uint64_t> rounds_ = 0;
};

}  // namespace ckpt::ranks
