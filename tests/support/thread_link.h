// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: what a job does, without a launcher.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ckpt/error.h"
#include "reshard/ranks/job.h"

namespace ckpt::test {

struct Mail {
  explicit Mail(uint32_t ranks) : boxes(ranks) {}
  std::mutex mutex;
  std::vector<std::deque<ranks::Message>> boxes;
  // Payload receives that have begun, by receiver, sender and channel.
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;
  struct Taking {
    std::span<std::byte> room;
    uint64_t ticket = 0;
  };
  std::map<Key, Taking> takings;
  struct State {
    bool there = false;
    uint64_t bytes = 0;
    uint32_t looks = 0;  // that still find nothing
  };
  std::map<uint64_t, State> tickets;
  uint64_t next_ticket = 1;
  std::minstd_rand random;
  bool two_machines = false;  // even and odd ranks
  int aborted = -1;
};

class ThreadLink : public ranks::Link {
 public:
  ThreadLink(std::shared_ptr<Mail> mail, uint32_t rank)
      : mail_(std::move(mail)), rank_(rank) {}
  uint32_t rank() const override { return rank_; }
  uint32_t size() const override {
    return static_cast<uint32_t>(mail_->boxes.size());
  }
  std::string host() const override {
    return mail_->two_machines && rank_ % 2 ? "there" : "here";
  }
  void send(uint32_t to, ranks::Tag tag, std::string_view bytes) override {
    const std::lock_guard lock(mail_->mutex);
    mail_->boxes.at(to).push_back({rank_, tag, std::string(bytes)});
  }
  void post(uint32_t to, ranks::Tag tag, std::string_view bytes) override {
    if (bytes.size() > kMostPosted) throw bug_error({}, "too much is posted");
    send(to, tag, bytes);
  }
  Ticket take(uint32_t from, uint32_t channel,
              std::span<std::byte> room) override {
    const std::lock_guard lock(mail_->mutex);
    const Ticket ticket = new_ticket();
    if (!mail_->takings
             .try_emplace({rank_, from, channel}, Mail::Taking{room, ticket})
             .second)
      throw bug_error({}, "channel {} is taken twice", channel);
    return ticket;
  }
  Ticket give(uint32_t to, uint32_t channel,
              std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mail_->mutex);
    const auto taking = mail_->takings.find({to, rank_, channel});
    if (taking == mail_->takings.end())
      throw bug_error({}, "nobody takes channel {}", channel);
    const auto [room, ticket] = taking->second;
    if (bytes.size() > room.size()) throw bug_error({}, "too little room");
    std::ranges::copy(bytes, room.begin());
    mail_->takings.erase(taking);
    arrive(ticket, bytes.size());
    const Ticket own = new_ticket();
    arrive(own, bytes.size());
    return own;
  }
  // The first few looks fail, as over a wire.
  std::optional<uint64_t> done(Ticket ticket) override {
    const std::lock_guard lock(mail_->mutex);
    Mail::State& state = mail_->tickets.at(ticket);
    if (!state.there || state.looks-- > 0) return std::nullopt;
    const uint64_t bytes = state.bytes;
    mail_->tickets.erase(ticket);
    return bytes;
  }
  std::optional<ranks::Message> poll() override {
    const std::lock_guard lock(mail_->mutex);
    auto& box = mail_->boxes[rank_];
    if (box.empty()) return std::nullopt;
    ranks::Message message = std::move(box.front());
    box.pop_front();
    return message;
  }
  void finish() override {}
  void abort(int status) override { mail_->aborted = status; }

 private:
  Ticket new_ticket() {
    mail_->tickets[mail_->next_ticket] = {};
    return mail_->next_ticket++;
  }
  void arrive(Ticket ticket, uint64_t bytes) {
    mail_->tickets[ticket] = {true, bytes,
                              static_cast<uint32_t>(mail_->random() % 3)};
  }

  std::shared_ptr<Mail> mail_;
  uint32_t rank_;
};

// Runs `lead` as rank 0 of that many ranks. Returns the exit statuses with
// which the others ended, after finish(status).
inline std::vector<int> with_ranks(uint32_t count, int status,
                                   const std::function<void()>& lead,
                                   bool two_machines = false) {
  const auto mail = std::make_shared<Mail>(count);
  mail->two_machines = two_machines;
  std::vector<int> statuses(count, -1);
  std::vector<std::jthread> others;
  for (uint32_t rank = 1; rank < count; ++rank)
    others.emplace_back([&statuses, mail, rank] {
      ThreadLink link(mail, rank);
      statuses[rank] = ranks::serve(link);
    });
  ranks::Job job(std::make_shared<ThreadLink>(mail, 0));
  ranks::set_current(&job);
  lead();
  ranks::set_current(nullptr);
  job.finish(status);
  others.clear();
  statuses.erase(statuses.begin());
  return statuses;
}

}  // namespace ckpt::test
