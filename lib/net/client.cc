// SPDX-License-Identifier: Apache-2.0
// The threads that run all requests.
#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>

#include "lib/failures.h"
#include "lib/heap.h"
#include "lib/interrupt.h"
#include "lib/net/http.h"
#include "lib/net/settings.h"
#include "lib/net/transfer.h"
#include "lib/net/url.h"
#include "lib/net/window.h"
#include "lib/processors.h"

namespace ckpt::net {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<uint64_t> requests_made = 0;
std::atomic<uint64_t> bytes_come = 0;
std::atomic<uint64_t> bytes_sent = 0;

// For the whole process: a retry costs ten, a successful request gives one
// back.
constexpr int kMostBudget = 1000;
std::atomic<int> budget = kMostBudget;

// Worth a thread of its own: its bytes cost copies and TLS.
bool is_large(const Request& request) {
  constexpr uint64_t kLarge = 1 << 20;
  return std::max(request.wanted(), request.body_bytes) >= kLarge;
}

class Client {
 public:
  // Never destroyed: its threads may run until the process ends.
  static Client& get() {
    static Client* const client = new Client;
    return *client;
  }

  Ticket start(Request request) {
    auto transfer = std::make_shared<Transfer>(std::move(request));
    // If it must wait for others to end, whoever ends them begins it. Only the
    // first thread takes small ones.
    bool may_begin = false;
    {
      const std::lock_guard lock(mutex_);
      const Host& host = enqueue(transfer);
      may_begin = host.running < host.window.size();
    }
    if (!may_begin) return transfer;
    if (is_large(transfer->request))
      wake();
    else
      curl().multi_wakeup(loops_[0].multi);
    return transfer;
  }

  void wait(Transfer& transfer, const std::function<void()>& look) {
    std::unique_lock lock(mutex_);
    while (!transfer.done) {
      transfer.ended.wait_for(lock, std::chrono::milliseconds(100));
      if (transfer.done) break;
      if (!transfer.request.heedless && interrupted()) {
        lock.unlock();
        cancel(transfer);
        throw Interrupted("");
      }
      if (!look) continue;
      lock.unlock();
      look();
      lock.lock();
    }
    lock.unlock();
    // It may have ended before the first look, or during one.
    if (look) look();
  }

  bool is_done(const Transfer& transfer) {
    const std::lock_guard lock(mutex_);
    return transfer.done;
  }

  void cancel(Transfer& transfer) {
    std::unique_lock lock(mutex_);
    transfer.cancelled = true;
    wake();
    transfer.ended.wait(lock, [&] { return transfer.done; });
  }

 private:
  struct Waiting {
    Clock::time_point due;
    Ticket transfer;
  };
  // Requests to one host: its window limits how many run.
  struct Host {
    Host(size_t most, size_t first, size_t large_takes)
        : window(most, first), large_takes(large_takes) {}
    Window window;
    const size_t large_takes;  // places in it; a small request takes one
    size_t running = 0;        // places taken
    std::deque<Ticket> small, large;
  };
  // One thread's state. All small requests go to the first thread and share its
  // connections.
  struct Loop {
    CURLM* multi;
    bool first;
    std::list<Ticket> running = {};
    std::vector<CURL*> free = {};
    std::map<const Host*, size_t> large = {};  // that are running
  };

  Client() : connections_(most_connections(true)) {
    constexpr size_t kMostLoops = 4;
    const size_t count = std::min<size_t>(processors(), kMostLoops);
    const auto most = static_cast<long>(connections_);
    for (size_t i = 0; i < count; ++i) {
      loops_.push_back({curl().multi_init(), i == 0});
      CURLM* const multi = loops_.back().multi;
      curl().multi_setopt(multi, CURLMOPT_MAX_HOST_CONNECTIONS, most);
      curl().multi_setopt(multi, CURLMOPT_MAXCONNECTS, 4 * most);
    }
    const std::lock_guard lock(mutex_);
    std::thread([this] { run(loops_[0]); }).detach();
    for (size_t i = 1; i < count; ++i) try {
        std::thread([this, i] { run(loops_[i]); }).detach();
      } catch (const std::system_error&) {
        loops_.resize(i);  // the others do its work
      }
  }

  void run(Loop& loop) {
    heap::exempt_this_thread();
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        drop_cancelled(loop);
        take_due();
        begin_queued(loop);
      }
      int running = 0;
      curl().multi_perform(loop.multi, &running);
      const std::vector<Ended> ended = finish(loop);
      int pause = 0;
      {
        const std::lock_guard lock(mutex_);
        take_ended(loop, ended);
        const auto now = Clock::now();
        for (auto& [name, host] : hosts_)
          if (host.running != 0) host.window.look(now, host.running);
        pause = can_begin(loop) ? 0 : time_to_due();
      }
      curl().multi_poll(loop.multi, nullptr, 0, pause, nullptr);
    }
  }

  void wake() {
    for (const Loop& loop : loops_) curl().multi_wakeup(loop.multi);
  }

  // Everything below is called with the mutex held, except finish().
  int time_to_due() const {
    auto least = std::chrono::milliseconds(1000);
    for (const Waiting& one : waiting_)
      least =
          std::min(least, std::chrono::duration_cast<std::chrono::milliseconds>(
                              one.due - Clock::now()));
    return static_cast<int>(std::max<int64_t>(0, least.count()));
  }

  static void end(Transfer& transfer) {
    transfer.done = true;
    transfer.ended.notify_all();
  }

  void drop_cancelled(Loop& loop) {
    const auto drop = [&](const Ticket& one) {
      if (!one->cancelled) return false;
      if (one->easy) stop(loop, *one, one->easy);
      end(*one);
      return true;
    };
    std::erase_if(waiting_,
                  [&](const Waiting& one) { return drop(one.transfer); });
    std::erase_if(loop.running, drop);
    for (auto& [name, host] : hosts_) {
      std::erase_if(host.small, drop);
      std::erase_if(host.large, drop);
    }
  }

  // Takes it out of this thread.
  void stop(Loop& loop, Transfer& transfer, CURL* easy) {
    curl().multi_remove_handle(loop.multi, easy);
    transfer.easy = nullptr;
    loop.free.push_back(easy);
    Host& host = host_of(transfer);
    host.running -= places(host, transfer);
    if (is_large(transfer.request)) --loop.large[&host];
  }

  static size_t places(const Host& host, const Transfer& transfer) {
    return is_large(transfer.request) ? host.large_takes : 1;
  }

  // Stores are made for many requests at once, and say when it is too much; a
  // web server may be a small one. Of a store, a large request takes two
  // places: as many of them as of small ones would move no more, and take more
  // memory.
  static size_t most_connections(bool store) {
    constexpr size_t kMost = 64, kMostOfStore = 128;
    const size_t wanted = settings().connections;
    return wanted != 0 ? wanted : store ? kMostOfStore : kMost;
  }

  Host& host_of(const Transfer& transfer) {
    constexpr size_t kFirst = 8, kFirstOfStore = 128;
    const bool store = transfer.request.as_stored;
    const bool by_kind = store && settings().connections == 0;
    return hosts_
        .try_emplace(parse_url(transfer.request.url).authority,
                     most_connections(store), store ? kFirstOfStore : kFirst,
                     by_kind ? 2 : 1)
        .first->second;
  }

  const Host& enqueue(const Ticket& transfer) {
    Host& host = host_of(*transfer);
    (is_large(transfer->request) ? host.large : host.small).push_back(transfer);
    return host;
  }

  void take_due() {
    const auto now = Clock::now();
    std::erase_if(waiting_, [&](const Waiting& one) {
      if (one.due > now) return false;
      enqueue(one.transfer);
      return true;
    });
  }

  // What this thread may begin now; null if nothing. Each thread has its share
  // of the large ones.
  std::deque<Ticket>* next(const Loop& loop, Host& host) const {
    if (host.running >= host.window.size()) return nullptr;
    if (loop.first && !host.small.empty()) return &host.small;
    if (host.large.empty()) return nullptr;
    const auto found = loop.large.find(&host);
    const size_t mine = found == loop.large.end() ? 0 : found->second;
    const size_t most =
        std::max<size_t>(1, host.window.size() / host.large_takes);
    const size_t share = (most + loops_.size() - 1) / loops_.size();
    return mine < share ? &host.large : nullptr;
  }

  // Also wakes the other threads if they have something to begin.
  bool can_begin(const Loop& loop) {
    bool some = false;
    for (auto& [name, host] : hosts_)
      for (const Loop& one : loops_) {
        if (!next(one, host)) continue;
        if (&one == &loop)
          some = true;
        else
          curl().multi_wakeup(one.multi);
      }
    return some;
  }

  void begin_queued(Loop& loop) {
    for (auto& [name, host] : hosts_)
      while (std::deque<Ticket>* const queue = next(loop, host)) {
        const Ticket transfer = std::move(queue->front());
        queue->pop_front();
        const bool alone = host.running == 0;
        host.running += places(host, *transfer);
        if (queue == &host.large) ++loop.large[&host];
        transfer->began = Clock::now();
        transfer->window = &host.window;
        host.window.began(transfer->began, alone ? 1 : host.running);
        begin(loop, transfer);
      }
  }

  static void begin(Loop& loop, const Ticket& transfer) {
    CURL* easy = nullptr;
    if (loop.free.empty()) {
      easy = curl().easy_init();
    } else {
      easy = loop.free.back();
      loop.free.pop_back();
    }
    transfer->prepare(easy);
    curl().multi_add_handle(loop.multi, easy);
    loop.running.push_back(transfer);
  }

  struct Ended {
    Ticket transfer;
    CURL* easy;
    bool more;  // there will be another attempt
  };

  // Called without the mutex: the last bytes of a file are written here.
  static std::vector<Ended> finish(Loop& loop) {
    std::vector<Ended> all;
    int left = 0;
    while (CURLMsg* const message = curl().multi_info_read(loop.multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* const easy = message->easy_handle;
      const CURLcode code = message->data.result;
      const auto found = std::ranges::find_if(
          loop.running, [&](const Ticket& one) { return one->easy == easy; });
      const Ticket transfer = *found;
      loop.running.erase(found);
      all.push_back({transfer, easy, transfer->finish(easy, code)});
    }
    return all;
  }

  void take_ended(Loop& loop, const std::vector<Ended>& all) {
    const auto now = Clock::now();
    for (const auto& [transfer, easy, more] : all) {
      stop(loop, *transfer, easy);
      Host& host = host_of(*transfer);
      if (transfer->is_too_much())
        host.window.refused(now, transfer->began);
      else
        host.window.ended(now, places(host, *transfer));
      if (more)
        waiting_.push_back({now + transfer->pause(), transfer});
      else
        end(*transfer);
    }
  }

  // First, before anything made by curl: wrong settings throw.
  const size_t connections_;
  std::mutex mutex_;
  std::vector<Waiting> waiting_;
  std::map<std::string, Host> hosts_;
  std::vector<Loop> loops_;
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

const Response& wait(const Ticket& ticket) { return wait(ticket, nullptr); }

const Response& wait(const Ticket& ticket, const std::function<void()>& look) {
  Client::get().wait(*ticket, look);
  if (ticket->full) throw heap::Full();
  if (ticket->error) {
    failures::note(*ticket->error);
    throw *ticket->error;
  }
  return ticket->response;
}

uint64_t bytes_onto(const Ticket& ticket) { return ticket->written; }

bool is_done(const Ticket& ticket) { return Client::get().is_done(*ticket); }

void cancel(const Ticket& ticket) { Client::get().cancel(*ticket); }

Response fetch(Request request) { return wait(start(std::move(request))); }

const Request& request_of(const Ticket& ticket) { return ticket->request; }

}  // namespace ckpt::net
