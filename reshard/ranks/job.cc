// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/job.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/session.h"
#include "reshard/ranks/answers.h"
#include "reshard/ranks/failure.h"
#include "reshard/ranks/pack.h"
#include "reshard/ranks/pulse.h"
#include "reshard/ranks/task.h"

namespace ckpt::ranks {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kTell = milliseconds(100);  // between two reports of progress

Job* current_job = nullptr;
Sharing current_sharing;

// Runs work in a separate thread, so that this one can talk to the other ranks.
class Background {
 public:
  Background(std::string task, Exchange& exchange, reshard::Journal* journal)
      : task_(std::move(task)) {
    exchange.begin();
    control_.exchange = &exchange;
    const auto work = [this, journal] {
      const Ring at_end(*control_.exchange);
      return perform(task_, control_, journal);
    };
    future_ = std::async(std::launch::async, in_session(work));
  }
  // The talking thread has given up, or the task is over: it must not wait for
  // messages.
  ~Background() { stop(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  Control& control() { return control_; }
  bool ready() {
    return future_.wait_for(milliseconds(0)) == std::future_status::ready;
  }
  // The task gives up within a block.
  void stop() {
    control_.stopped = true;
    control_.exchange->stop();
  }
  // A result, or a failure from pack_failure.
  bool take(std::string& bytes) {
    try {
      bytes = future_.get();
      return true;
    } catch (...) {
      bytes = pack_failure(std::current_exception());
      return false;
    }
  }

 private:
  struct Ring {
    explicit Ring(Exchange& to) : exchange(to) {}
    ~Ring() { exchange.ring(); }
    Exchange& exchange;
  };
  Control control_;
  std::string task_;
  std::future<std::string> future_;  // last: destruction waits for the thread
};

// Waits with growing pauses: there may be more ranks than processors.
class Nap {
 public:
  void rest() {
    std::this_thread::sleep_for(pause_);
    grow(kLongest);
  }
  // The same, but the exchange may wake it; while there is one, others are
  // waiting for answers.
  void rest(Exchange& exchange) {
    if (exchange.rest(pause_))
      wake();
    else
      grow(exchange.is_open() ? kLongest / 4 : kLongest);
  }
  void wake() { pause_ = kShortest; }

 private:
  using Pause = std::chrono::microseconds;
  static constexpr auto kShortest = Pause(100);
  static constexpr auto kLongest = Pause(5000);
  void grow(Pause most) { pause_ = std::min(pause_ * 2, most); }
  Pause pause_ = kShortest;
};

// Acts if it is not destroyed in time.
class Watchdog {
 public:
  Watchdog(std::chrono::seconds patience, std::function<void()> act)
      : thread_([this, patience, act = std::move(act)] {
          std::unique_lock lock(mutex_);
          if (!over_.wait_for(lock, patience, [this] { return done_; })) act();
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    over_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;  // last: it uses the others
};

std::string done_message(bool good, const std::string& bytes) {
  return std::string(1, good ? '\1' : '\0') + bytes;
}

// Does rank 0's own part while listening to the others. False if one of them
// does not answer.
bool carry_out(Answers& answers, Link& link, Exchange& exchange,
               Background& own, const Progress& progress) {
  Nap nap;
  uint64_t told = 0;
  while (!answers.complete() || !exchange.quiet()) {
    for (auto message = link.poll(); message; message = link.poll()) {
      answers.heard(message->from);
      if (!exchange.hear(link, *message)) answers.receive(*message);
      nap.wake();
    }
    answers.watch();
    answers.beat();
    if (exchange.pump(link)) nap.wake();
    const uint64_t bytes = own.control().bytes;
    if (bytes != told) progress.advance(bytes - told);
    told = bytes;
    if (!answers.answered(0) && own.ready()) {
      std::string result;
      const bool good = own.take(result);
      answers.answer(0, good, std::move(result));
    }
    // Even when its own part is done: the others' parts belong to the job.
    if (interrupted())
      answers.fail(0, pack_failure(std::make_exception_ptr(Interrupted(""))));
    if (answers.failure() && !answers.stopping()) {
      answers.stop();
      own.stop();
    }
    // Its own part is in this process, so it must come to an end.
    if (answers.out_of_patience() && answers.answered(0)) return false;
    nap.rest(exchange);
  }
  return true;
}

int end_status(const Message& message) {
  return Unpacker(message.bytes).take<int32_t>();
}

// Tells rank 0 how far a task is, now and then.
class Teller {
 public:
  Teller(Link& link, const Control& control) : link_(link), control_(control) {}
  void tell(bool at_once) {
    const uint64_t bytes = control_.bytes;
    if (bytes == told_ || (!at_once && Clock::now() < next_)) return;
    Packer out;
    out.put(bytes - told_);
    link_.post(0, Tag::kProgress, out.take());
    told_ = bytes;
    next_ = Clock::now() + kTell;
  }

 private:
  Link& link_;
  const Control& control_;
  uint64_t told_ = 0;
  Clock::time_point next_ = Clock::now() + kTell;
};

// Runs the task in a thread while this one talks. Reports a failure at once,
// but is done only when nothing is in progress to or from this rank. Returns
// the exit status if rank 0 has given up meanwhile.
std::optional<int> perform_and_tell(Link& link, Exchange& exchange,
                                    std::string task) {
  Background work(std::move(task), exchange, nullptr);
  Teller teller(link, work.control());
  Pulse pulse(1, Clock::now());  // rank 0's
  pulse.heard(0, Clock::now());
  Nap nap;
  std::string result;
  bool good = false;
  for (bool ready = false; !ready || !exchange.quiet();) {
    nap.rest(exchange);
    for (auto message = link.poll(); message; message = link.poll()) {
      nap.wake();
      if (message->from == 0) pulse.heard(0, Clock::now());
      if (message->tag == Tag::kBeat || exchange.hear(link, *message)) continue;
      work.stop();  // nothing else comes during a task
      if (message->tag == Tag::kEnd) return end_status(*message);
    }
    if (const auto now = Clock::now(); pulse.silent(now))
      throw silence(0);
    else if (pulse.is_due(now))
      link.post(0, Tag::kBeat, "");
    if (exchange.pump(link)) nap.wake();
    teller.tell(false);
    if (ready || !work.ready()) continue;
    ready = true;
    good = work.take(result);
    if (good) continue;
    exchange.stop();
    link.send(0, Tag::kFailed, result);
  }
  teller.tell(true);
  link.send(0, Tag::kDone, done_message(good, result));
  return std::nullopt;
}

}  // namespace

Job::Job(std::shared_ptr<Link> link)
    : link_(std::move(link)), accounts_(link_->size()) {
  accounts_[0].host = link_->host();
  Nap nap;
  for (uint32_t there = 1; there < size();) {
    const auto message = link_->poll();
    if (!message) {
      nap.rest();
      continue;
    }
    accounts_.at(message->from).host = message->bytes;
    ++there;
  }
}

uint32_t Job::neighbours(uint32_t rank) const {
  return static_cast<uint32_t>(
      std::ranges::count(accounts_, accounts_.at(rank).host, &Account::host));
}

std::vector<uint8_t> Job::away_from(uint32_t rank) const {
  std::vector<uint8_t> away;
  for (const Account& account : accounts_)
    away.push_back(account.host != accounts_.at(rank).host);
  return away;
}

std::string Job::name_of(uint32_t rank) const {
  if (rank == 0) return "";
  return fmt::format("rank {} of {}, on {}", rank, size(),
                     accounts_[rank].host);
}

std::vector<std::string> Job::run(
    const std::function<std::string(uint32_t)>& make, const Progress& progress,
    reshard::Journal* journal) {
  broken_ = true;  // until all have answered
  Answers answers(*link_, progress);
  for (uint32_t rank = 1; rank < size(); ++rank) {
    const std::string task = make(rank);
    accounts_[rank].task_bytes += task.size();
    link_->send(rank, Tag::kTask, task);
    answers.beat();
  }
  Background own(make(0), exchange_, journal);
  broken_ = !carry_out(answers, *link_, exchange_, own, progress);
  if (answers.failure())
    throw_failure(answers.failure()->second, name_of(answers.failure()->first));
  return answers.take();
}

void Job::finish(int status) {
  if (broken_) link_->abort(status);
  Packer out;
  out.put(int32_t{status});
  const std::string word = out.take();
  for (uint32_t rank = 1; rank < size(); ++rank)
    link_->send(rank, Tag::kEnd, word);
  // All have answered, but one that hangs now would keep the others waiting for
  // its goodbye.
  const Watchdog watchdog(kPatience, [this, status] { link_->abort(status); });
  link_->finish();
}

int serve(Link& link) {
  // A signal stops the current task; then rank 0, which got one as well or
  // hears of it, ends the job.
  const InterruptScope scope;
  link.send(0, Tag::kHello, link.host());
  Exchange exchange;
  Nap nap;
  for (;;) {
    auto message = link.poll();
    exchange.pump(link);
    if (!message) {
      nap.rest();
      continue;
    }
    nap.wake();
    std::optional<int> status;
    // Others may have begun a task that is still on its way here, or may grant
    // what was asked for before a stop.
    if (exchange.hear(link, *message)) continue;
    if (message->tag == Tag::kTask)
      status = perform_and_tell(link, exchange, std::move(message->bytes));
    else if (message->tag == Tag::kEnd)
      status = end_status(*message);
    if (!status) continue;
    link.finish();
    return *status;
  }
}

Job* current() { return current_job; }
void set_current(Job* job) { current_job = job; }

Sharing sharing() { return current_sharing; }
void set_sharing(const Sharing& sharing) { current_sharing = sharing; }

uint64_t exchange_memory(uint64_t max_mem) {
  if (!current() || current_sharing.mode != Mode::kSend) return 0;
  return kExchangeSlots * exchange_buffer(current_sharing.buffer, max_mem);
}

}  // namespace ckpt::ranks
