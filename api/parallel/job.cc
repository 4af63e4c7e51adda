// SPDX-License-Identifier: Apache-2.0
// Communicators for threads of one process and for a launcher's processes.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/parallel.h"
#include "reshard/ranks/link.h"

namespace ckpt {
namespace {

// A table of messages: rows are written, then columns are read.
class Table {
 public:
  explicit Table(uint32_t count)
      : cells_(count, std::vector<std::string>(count)) {}

  uint32_t size() const { return static_cast<uint32_t>(cells_.size()); }

  std::vector<std::string> exchange(uint32_t rank,
                                    std::vector<std::string> row) {
    std::unique_lock lock(mutex_);
    cells_[rank] = std::move(row);
    meet(lock);
    std::vector<std::string> column;
    for (std::vector<std::string>& from : cells_)
      column.push_back(std::move(from[rank]));
    meet(lock);  // nobody writes before all have read
    return column;
  }

 private:
  void meet(std::unique_lock<std::mutex>& lock) {
    const uint64_t turn = turn_;
    if (++here_ == size()) {
      here_ = 0;
      ++turn_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return turn_ != turn; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t here_ = 0;
  uint64_t turn_ = 0;
  std::vector<std::vector<std::string>> cells_;
};

void check_row(const std::vector<std::string>& to, uint32_t size) {
  if (to.size() != size)
    throw usage_error({}, "an exchange of {} messages among {} ranks",
                      to.size(), size);
}

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Table> table, uint32_t rank)
      : table_(std::move(table)), rank_(rank) {}
  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return table_->size(); }
  std::vector<std::string> exchange(std::vector<std::string> to) override {
    check_row(to, size());
    return table_->exchange(rank_, std::move(to));
  }

 private:
  const std::shared_ptr<Table> table_;
  const uint32_t rank_;
};

// In round r, ranks a and b with a + b = r (mod size) are a pair, so all pairs
// meet once, each rank in the order of the rounds. Before a message is sent,
// its receiver says that it is waiting: a send to a process that is not there
// yet would have to wait for it, and links time out.
class LinkRank final : public Communicator {
 public:
  explicit LinkRank(std::unique_ptr<ranks::Link> link)
      : link_(std::move(link)),
        exceptions_(std::uncaught_exceptions()),
        inbox_(link_->size()) {}
  // A failing process leaves the job without a word: the launcher ends the job.
  ~LinkRank() override {
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      link_->finish();
    } catch (const std::exception&) {  // nobody is left to tell
    }
  }
  LinkRank(const LinkRank&) = delete;
  LinkRank& operator=(const LinkRank&) = delete;

  uint32_t rank() const override { return link_->rank(); }
  uint32_t size() const override { return link_->size(); }

  std::vector<std::string> exchange(std::vector<std::string> to) override {
    check_row(to, size());
    std::vector<std::string> from(size());
    from[rank()] = std::move(to[rank()]);
    for (uint32_t round = 0; round < size(); ++round) {
      const uint32_t peer = (round + size() - rank()) % size();
      if (peer == rank()) continue;
      if (rank() < peer) {
        give(peer, to[peer]);
        from[peer] = take(peer);
      } else {
        from[peer] = take(peer);
        give(peer, to[peer]);
      }
    }
    return from;
  }

 private:
  static constexpr ranks::Tag kReady = ranks::Tag::kAsk;
  static constexpr ranks::Tag kBytes = ranks::Tag::kTask;

  void give(uint32_t peer, const std::string& bytes) {
    wait_for(peer, kReady);
    link_->send(peer, kBytes, bytes);
  }
  std::string take(uint32_t peer) {
    link_->post(peer, kReady, {});
    return wait_for(peer, kBytes);
  }
  std::string wait_for(uint32_t peer, ranks::Tag tag) {
    auto pause = std::chrono::microseconds(20);
    while (inbox_[peer].empty()) {
      if (auto message = link_->poll()) {
        inbox_[message->from].push_back(*std::move(message));
        continue;
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(1000));
    }
    ranks::Message message = std::move(inbox_[peer].front());
    inbox_[peer].pop_front();
    if (message.tag != tag)
      throw usage_error({}, "rank {} is in another step of the exchange", peer)
          .with_hint("all ranks make the same calls in the same order");
    return std::move(message.bytes);
  }

  const std::unique_ptr<ranks::Link> link_;
  const int exceptions_;
  std::vector<std::deque<ranks::Message>> inbox_;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> make_thread_ranks(uint32_t count) {
  if (count == 0) throw usage_error({}, "a job of no ranks");
  const auto table = std::make_shared<Table>(count);
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (uint32_t rank = 0; rank < count; ++rank)
    ranks.push_back(std::make_shared<ThreadRank>(table, rank));
  return ranks;
}

std::shared_ptr<Communicator> join_job() {
  if (auto link = ranks::join_job())
    return std::make_shared<LinkRank>(std::move(link));
  return make_thread_ranks(1)[0];
}

}  // namespace ckpt
