// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/rounds.h"

#include <algorithm>
#include <utility>

#include "ckpt/error.h"
#include "lib/trace.h"

namespace ckpt::ranks {
namespace {

// A process that did not look for longer did not run.
constexpr auto kGap = std::chrono::milliseconds(500);

}  // namespace

Rounds::Rounds(const reshard::CudaModule& module, Setup setup)
    : setup_(std::move(setup)), looked_(std::chrono::steady_clock::now()) {
  peers_.emplace(module, setup_.rank, setup_.size, setup_.id, setup_.bytes);
  memory_ = peers_->memory();
}

Wire::Ticket Rounds::new_ticket() {
  tickets_[next_ticket_];
  return next_ticket_++;
}

uint64_t Rounds::place_of(const std::byte* at) const {
  return static_cast<uint64_t>(at - memory_.data());
}

void Rounds::settle(const Parcel& parcel, uint64_t bytes) {
  tickets_.at(parcel.ticket) = bytes;
}

Wire::Ticket Rounds::grant(Link& link, uint32_t to, const Note& note,
                           std::span<std::byte> room) {
  const Parcel parcel{.peer = to,
                      .id = note.id,
                      .at = place_of(room.data()),
                      .bytes = room.size(),
                      .ticket = new_ticket()};
  if (failed_) {
    settle(parcel, 0);
    return parcel.ticket;
  }
  offered_[note.channel] = parcel;
  Note grant = note;
  grant.turn = agenda_.offer();
  post(link, to, Tag::kGrant, grant);
  return parcel.ticket;
}

Wire::Ticket Rounds::give(Link& link, uint32_t to, const Note& grant,
                          std::span<const std::byte> bytes) {
  const Parcel parcel{.peer = to,
                      .out = true,
                      .id = grant.id,
                      .at = place_of(bytes.data()),
                      .bytes = bytes.size(),
                      .ticket = new_ticket()};
  Note word = grant;
  if (failed_) {
    settle(parcel, 0);
  } else {
    word.turn = agenda_.join(grant.turn, parcel);
    word.bytes = bytes.size();
  }
  post(link, to, Tag::kJoin, word);
  return parcel.ticket;
}

void Rounds::joined(uint32_t from, const Note& note) {
  if (failed_ || note.round != setup_.round) return;
  const auto found = offered_.find(note.channel);
  if (found == offered_.end() || found->second.peer != from ||
      found->second.id != note.id || found->second.bytes < note.bytes)
    throw bug_error({}, "rank {} sends {} bytes that nobody asked for", from,
                    note.bytes);
  Parcel parcel = found->second;
  offered_.erase(found);
  parcel.bytes = note.bytes;
  if (parcel.bytes == 0) {  // it has stopped
    agenda_.declined();
    settle(parcel, 0);
  } else if (!agenda_.joined(note.turn, parcel)) {
    throw bug_error({}, "rank {} joins round {}, which is over", from,
                    note.turn);
  }
}

std::optional<uint64_t> Rounds::done(Link&, Ticket ticket) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end())
    throw bug_error({}, "a ticket that is over: {}", ticket);
  const std::optional<uint64_t> bytes = found->second;
  if (bytes) tickets_.erase(found);
  return bytes;
}

bool Rounds::pump() {
  if (failed_) return false;
  try {
    const auto now = std::chrono::steady_clock::now();
    const Time passed = std::min<Time>(now - looked_, kGap);
    looked_ = now;
    if (busy_) waited_ += passed;
    if (stopped_) since_stop_ += passed;
    if (go_on()) return true;
    if (busy_ || !agenda_.empty()) check_time();
    return false;
  } catch (...) {
    fail();
    return true;
  }
}

bool Rounds::go_on() {
  if (busy_ && !peers_->done()) return false;
  const bool ended = std::exchange(busy_, false);
  met_ = true;
  for (const Parcel& parcel : running_) settle(parcel, parcel.bytes);
  running_.clear();
  auto parcels = agenda_.begin();
  if (parcels) begin(std::move(*parcels));
  return ended || parcels;
}

void Rounds::begin(std::vector<Parcel> parcels) {
  // The same order at both ends.
  std::ranges::sort(parcels, {}, [](const Parcel& parcel) {
    return std::pair(parcel.peer, parcel.id);
  });
  std::vector<CkptCudaParcel> sends, receives;
  uint64_t bytes = 0;
  for (const Parcel& parcel : parcels) {
    (parcel.out ? sends : receives)
        .push_back({parcel.at, parcel.bytes, parcel.peer});
    bytes += parcel.bytes;
  }
  const trace::Span span("begin a round", bytes);
  peers_->begin(sends, receives);
  running_ = std::move(parcels);
  busy_ = true;
  waited_ = {};
  ++rounds_;
}

void Rounds::check_time() {
  if (stopped_ && since_stop_ > kGrace)
    throw resource_error({}, "a round between GPUs did not end after a stop");
  if (busy_ && waited_ > (met_ ? kRound : kMeeting))
    throw resource_error({}, "the ranks' GPUs {} for {} s",
                         met_ ? "have not ended a round" : "have not met",
                         std::chrono::seconds(met_ ? kRound : kMeeting).count())
        .with_hint(
            "NCCL_DEBUG=INFO in the environment shows what NCCL tries; "
            "--device cpu sends by MPI");
}

void Rounds::fail() {
  failure_ = std::current_exception();
  failed_ = true;
  for (auto& [ticket, bytes] : tickets_)
    if (!bytes) bytes = 0;
  running_.clear();
  offered_.clear();
  if (!stopped_) setup_.on_failure();
}

std::exception_ptr Rounds::failure() const {
  return failed_ ? failure_ : nullptr;
}

}  // namespace ckpt::ranks
