// Ranks that are threads of one process: what a job does, without a launcher.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "reshard/ranks/job.h"

namespace ckpt::test {

struct Mail {
  explicit Mail(uint32_t ranks) : boxes(ranks) {}
  std::mutex mutex;
  std::vector<std::deque<ranks::Message>> boxes;
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
  std::string host() const override { return "here"; }
  void send(uint32_t to, ranks::Tag tag, std::string_view bytes) override {
    const std::lock_guard lock(mail_->mutex);
    mail_->boxes.at(to).push_back({rank_, tag, std::string(bytes)});
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
  std::shared_ptr<Mail> mail_;
  uint32_t rank_;
};

// Runs `lead` as rank 0 of that many ranks. Returns the exit statuses with
// which the others ended, after finish(status).
inline std::vector<int> with_ranks(uint32_t count, int status,
                                   const std::function<void()>& lead) {
  const auto mail = std::make_shared<Mail>(count);
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
