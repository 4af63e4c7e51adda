#include "reshard/ranks/job.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "reshard/ranks/pack.h"
#include "reshard/ranks/task.h"

namespace ckpt::ranks {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long a rank may take to notice that it shall stop: a block of 2 MiB, or
// the time that a stream takes to be unpacked up to where it is needed.
constexpr auto kPatience = std::chrono::seconds(20);
// After a signal launchers kill within a second or so.
constexpr auto kAfterSignal = milliseconds(700);
constexpr auto kTell = milliseconds(100);  // between two words of progress

Job* current_job = nullptr;
Exchange current_exchange = Exchange::kAuto;

// Work in a thread of its own, so that this one can talk to the other ranks.
class Background {
 public:
  Background(std::string task, reshard::Journal* journal)
      : task_(std::move(task)),
        future_(std::async(std::launch::async, [this, journal] {
          return perform(task_, control_, journal);
        })) {}
  Control& control() { return control_; }
  // Waits for a moment; then says whether there is a result.
  bool ready(milliseconds moment) {
    return future_.wait_for(moment) == std::future_status::ready;
  }
  // A result, or a failure as pack_failure has it.
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
  Control control_;
  std::string task_;
  std::future<std::string> future_;  // last: its end waits for the thread
};

// Waits less and less eagerly: ranks may be more than processors.
class Nap {
 public:
  void rest() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, std::chrono::microseconds(5000));
  }
  void wake() { pause_ = kShortest; }

 private:
  static constexpr auto kShortest = std::chrono::microseconds(100);
  std::chrono::microseconds pause_ = kShortest;
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

// The state of Job::run: who has answered, and what failed first.
class Round {
 public:
  Round(Link& link, const Progress& progress)
      : link_(link),
        progress_(progress),
        results_(link.size()),
        answered_(link.size()) {}

  void answer(uint32_t rank, bool good, std::string bytes) {
    answered_.at(rank) = true;
    if (good)
      results_[rank] = std::move(bytes);
    else if (!is_stopped(bytes))
      fail(rank, std::move(bytes));
  }
  void fail(uint32_t rank, std::string failure) {
    if (!failure_) failure_.emplace(rank, std::move(failure));
  }
  void receive(const Message& message) {
    if (message.tag == Tag::kProgress)
      progress_.advance(Unpacker(message.bytes).take<uint64_t>());
    else if (message.tag == Tag::kDone && !message.bytes.empty())
      answer(message.from, message.bytes[0] != 0, message.bytes.substr(1));
  }
  // Tells those who have not answered that it is over.
  void stop() {
    stopped_ = Clock::now();
    for (uint32_t rank = 1; rank < link_.size(); ++rank)
      if (!answered_[rank]) link_.send(rank, Tag::kStop, "");
  }
  bool stopping() const { return stopped_.has_value(); }
  bool out_of_patience() const {
    if (!stopped_) return false;
    const auto patience =
        interrupted() ? milliseconds(kAfterSignal) : milliseconds(kPatience);
    return Clock::now() - *stopped_ > patience;
  }
  bool complete() const {
    return std::ranges::all_of(answered_, [](bool there) { return there; });
  }
  bool answered(uint32_t rank) const { return answered_.at(rank); }
  const std::optional<std::pair<uint32_t, std::string>>& failure() const {
    return failure_;
  }
  std::vector<std::string> take() { return std::move(results_); }

 private:
  Link& link_;
  const Progress& progress_;
  std::vector<std::string> results_;
  std::vector<bool> answered_;
  std::optional<std::pair<uint32_t, std::string>> failure_;
  std::optional<Clock::time_point> stopped_;
};

// Rank 0's own part, beside what the others say. False: somebody does not
// answer.
bool carry_out(Round& round, Link& link, Background& own,
               const Progress& progress) {
  Nap nap;
  uint64_t told = 0;
  while (!round.complete()) {
    for (auto message = link.poll(); message; message = link.poll()) {
      round.receive(*message);
      nap.wake();
    }
    const uint64_t bytes = own.control().bytes;
    if (bytes != told) progress.advance(bytes - told);
    told = bytes;
    if (!round.answered(0) && own.ready(milliseconds(0))) {
      std::string result;
      const bool good = own.take(result);
      round.answer(0, good, std::move(result));
    }
    // Also when its own part is done: the others' parts are the job's.
    if (interrupted())
      round.fail(0, pack_failure(std::make_exception_ptr(Interrupted(""))));
    if (round.failure() && !round.stopping()) {
      round.stop();
      own.control().stopped = true;
    }
    // Its own part is in this process: it has to come to an end.
    if (round.out_of_patience() && round.answered(0)) return false;
    nap.rest();
  }
  return true;
}

int end_status(const Message& message) {
  return Unpacker(message.bytes).take<int32_t>();
}

// The task in a thread; this one listens for Tag::kStop and tells how far it
// is. Returns the exit status if rank 0 has given up meanwhile.
std::optional<int> perform_and_tell(Link& link, std::string task) {
  Background work(std::move(task), nullptr);
  uint64_t told = 0;
  auto next = Clock::now() + kTell;
  for (bool ready = false; !ready;) {
    ready = work.ready(milliseconds(5));
    for (auto message = link.poll(); message; message = link.poll()) {
      work.control().stopped = true;  // nothing else comes during a task
      if (message->tag == Tag::kEnd) return end_status(*message);
    }
    const uint64_t bytes = work.control().bytes;
    if (bytes == told || (!ready && Clock::now() < next)) continue;
    Packer out;
    out.put(bytes - told);
    link.send(0, Tag::kProgress, out.take());
    told = bytes;
    next = Clock::now() + kTell;
  }
  std::string result;
  const bool good = work.take(result);
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

std::string Job::name_of(uint32_t rank) const {
  if (rank == 0) return "";
  return fmt::format("rank {} of {}, on {}", rank, size(),
                     accounts_[rank].host);
}

std::vector<std::string> Job::run(
    const std::function<std::string(uint32_t)>& make, const Progress& progress,
    reshard::Journal* journal) {
  broken_ = true;  // until all have answered
  Round round(*link_, progress);
  for (uint32_t rank = 1; rank < size(); ++rank) {
    const std::string task = make(rank);
    accounts_[rank].task_bytes += task.size();
    link_->send(rank, Tag::kTask, task);
  }
  Background own(make(0), journal);
  broken_ = !carry_out(round, *link_, own, progress);
  if (round.failure())
    throw_failure(round.failure()->second, name_of(round.failure()->first));
  return round.take();
}

void Job::finish(int status) {
  if (broken_) link_->abort(status);
  Packer out;
  out.put(int32_t{status});
  const std::string word = out.take();
  for (uint32_t rank = 1; rank < size(); ++rank)
    link_->send(rank, Tag::kEnd, word);
  // All have answered, but one that stops now would keep the others waiting
  // for its goodbye.
  const Watchdog watchdog(kPatience, [this, status] { link_->abort(status); });
  link_->finish();
}

int serve(Link& link) {
  // A signal stops the task at hand; then rank 0, which has got one as well or
  // hears of it, ends the job.
  const InterruptScope scope;
  link.send(0, Tag::kHello, link.host());
  Nap nap;
  for (;;) {
    auto message = link.poll();
    if (!message) {
      nap.rest();
      continue;
    }
    nap.wake();
    std::optional<int> status;
    if (message->tag == Tag::kTask)
      status = perform_and_tell(link, std::move(message->bytes));
    else if (message->tag == Tag::kEnd)
      status = end_status(*message);
    if (!status) continue;
    link.finish();
    return *status;
  }
}

Job* current() { return current_job; }
void set_current(Job* job) { current_job = job; }

Exchange exchange() { return current_exchange; }
void set_exchange(Exchange exchange) { current_exchange = exchange; }

}  // namespace ckpt::ranks
