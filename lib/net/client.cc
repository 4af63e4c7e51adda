// SPDX-License-Identifier: Apache-2.0
// The thread that runs all requests.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>

#include "lib/interrupt.h"
#include "lib/net/http.h"
#include "lib/net/settings.h"
#include "lib/net/transfer.h"
#include "lib/net/url.h"
#include "lib/net/window.h"

namespace ckpt::net {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<uint64_t> requests_made = 0;
std::atomic<uint64_t> bytes_come = 0;
std::atomic<uint64_t> bytes_sent = 0;

// Of the process: a retry costs ten, a request that ended well gives one back.
constexpr int kMostBudget = 1000;
std::atomic<int> budget = kMostBudget;

class Client {
 public:
  // It is never destroyed: its thread may run until the process ends.
  static Client& get() {
    static Client* const client = new Client;
    return *client;
  }

  Ticket start(Request request) {
    auto transfer = std::make_shared<Transfer>(std::move(request));
    {
      const std::lock_guard lock(mutex_);
      incoming_.push_back(transfer);
    }
    curl().multi_wakeup(multi_);
    return transfer;
  }

  void wait(Transfer& transfer) {
    std::unique_lock lock(mutex_);
    while (!transfer.done) {
      ended_.wait_for(lock, std::chrono::milliseconds(100));
      if (!transfer.done && !transfer.request.heedless && interrupted()) {
        lock.unlock();
        cancel(transfer);
        throw Interrupted("");
      }
    }
  }

  bool is_done(const Transfer& transfer) {
    const std::lock_guard lock(mutex_);
    return transfer.done;
  }

  void cancel(Transfer& transfer) {
    std::unique_lock lock(mutex_);
    transfer.cancelled = true;
    curl().multi_wakeup(multi_);
    ended_.wait(lock, [&] { return transfer.done; });
  }

 private:
  struct Waiting {
    Clock::time_point due;
    Ticket transfer;
  };
  // Requests for one host: those that its window lets through run.
  struct Host {
    explicit Host(size_t most) : window(most) {}
    Window window;
    size_t running = 0;
    std::deque<Ticket> queue;
  };

  Client() : connections_(settings().connections), multi_(curl().multi_init()) {
    const auto most = static_cast<long>(connections_);
    curl().multi_setopt(multi_, CURLMOPT_MAX_HOST_CONNECTIONS, most);
    curl().multi_setopt(multi_, CURLMOPT_MAXCONNECTS, 4 * most);
    std::thread([this] { run(); }).detach();
  }

  void run() {
    while (true) {
      drop_cancelled();
      take_due();
      begin_queued();
      int running = 0;
      curl().multi_perform(multi_, &running);
      take_ended();
      curl().multi_poll(multi_, nullptr, 0, pause(), nullptr);
    }
  }

  int pause() {
    const std::lock_guard lock(mutex_);
    if (!incoming_.empty()) return 0;
    auto least = std::chrono::milliseconds(1000);
    for (const Waiting& one : waiting_)
      least =
          std::min(least, std::chrono::duration_cast<std::chrono::milliseconds>(
                              one.due - Clock::now()));
    return static_cast<int>(std::max<int64_t>(0, least.count()));
  }

  void end(Transfer& transfer) {
    {
      const std::lock_guard lock(mutex_);
      transfer.done = true;
    }
    ended_.notify_all();
  }

  void drop_cancelled() {
    std::vector<Ticket> gone;
    {
      const std::lock_guard lock(mutex_);
      const auto take = [&](const Ticket& one) {
        if (one->cancelled) gone.push_back(one);
        return one->cancelled;
      };
      std::erase_if(incoming_, take);
      std::erase_if(waiting_,
                    [&](const Waiting& one) { return take(one.transfer); });
      std::erase_if(running_, take);
      for (auto& [name, host] : hosts_) std::erase_if(host.queue, take);
    }
    for (const Ticket& one : gone) {
      if (one->easy) release(*one);
      end(*one);
    }
  }

  void release(Transfer& transfer) {
    CURL* const easy = transfer.easy;
    curl().multi_remove_handle(multi_, easy);
    transfer.easy = nullptr;
    free_.push_back(easy);
    --host_of(transfer).running;
  }

  Host& host_of(const Transfer& transfer) {
    return hosts_
        .try_emplace(parse_url(transfer.request.url).authority, connections_)
        .first->second;
  }

  void take_due() {
    std::vector<Ticket> due;
    {
      const std::lock_guard lock(mutex_);
      due.swap(incoming_);
      const auto now = Clock::now();
      std::erase_if(waiting_, [&](const Waiting& one) {
        if (one.due > now) return false;
        due.push_back(one.transfer);
        return true;
      });
    }
    for (Ticket& one : due) {
      Host& host = host_of(*one);
      host.queue.push_back(std::move(one));
    }
  }

  void begin_queued() {
    for (auto& [name, host] : hosts_)
      while (!host.queue.empty() && host.running < host.window.size()) {
        const Ticket transfer = std::move(host.queue.front());
        host.queue.pop_front();
        ++host.running;
        transfer->began = Clock::now();
        host.window.began(transfer->began, host.running);
        begin(transfer);
      }
  }

  void begin(const Ticket& transfer) {
    CURL* easy = nullptr;
    if (free_.empty()) {
      easy = curl().easy_init();
    } else {
      easy = free_.back();
      free_.pop_back();
    }
    transfer->prepare(easy);
    curl().multi_add_handle(multi_, easy);
    running_.push_back(transfer);
  }

  void take_ended() {
    int left = 0;
    while (CURLMsg* const message = curl().multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* const easy = message->easy_handle;
      const CURLcode code = message->data.result;
      const auto found = std::ranges::find_if(
          running_, [&](const Ticket& one) { return one->easy == easy; });
      const Ticket transfer = *found;
      running_.erase(found);
      const uint64_t moved = transfer->moved();
      const bool more = transfer->finish(easy, code);
      curl().multi_remove_handle(multi_, easy);
      free_.push_back(easy);
      Host& host = host_of(*transfer);
      --host.running;
      const auto now = Clock::now();
      if (transfer->is_too_much())
        host.window.refused(now, transfer->began);
      else
        host.window.ended(now, moved);
      if (more) {
        const std::lock_guard lock(mutex_);
        waiting_.push_back({Clock::now() + transfer->pause(), transfer});
      } else {
        end(*transfer);
      }
    }
  }

  // Before what curl makes: settings that are wrong throw.
  const size_t connections_;
  CURLM* const multi_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<Ticket> incoming_;
  std::vector<Waiting> waiting_;
  // Of the thread alone.
  std::list<Ticket> running_;
  std::vector<CURL*> free_;
  std::map<std::string, Host> hosts_;
};

}  // namespace

bool take_retry() {
  constexpr int kCost = 10;
  if (budget.fetch_sub(kCost) >= kCost) return true;
  budget += kCost;
  return false;
}

void give_retry() {
  if (budget < kMostBudget) ++budget;
}

void count_traffic(uint64_t requests, uint64_t bytes) {
  requests_made.fetch_add(requests, std::memory_order_relaxed);
  bytes_come.fetch_add(bytes, std::memory_order_relaxed);
}

void count_sent(uint64_t bytes) {
  bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
}

Traffic traffic() { return {requests_made, bytes_come, bytes_sent}; }

Ticket start(Request request) {
  return Client::get().start(std::move(request));
}

const Response& wait(const Ticket& ticket) {
  Client::get().wait(*ticket);
  if (ticket->error) throw *ticket->error;
  return ticket->response;
}

bool is_done(const Ticket& ticket) { return Client::get().is_done(*ticket); }

void cancel(const Ticket& ticket) { Client::get().cancel(*ticket); }

Response fetch(Request request) { return wait(start(std::move(request))); }

const Request& request_of(const Ticket& ticket) { return ticket->request; }

}  // namespace ckpt::net
