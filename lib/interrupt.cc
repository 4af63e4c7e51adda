// SPDX-License-Identifier: Apache-2.0
#include "lib/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace ckpt {
namespace {

std::atomic<int> arrived{0};  // the first signal
std::atomic<int> scopes{0};
static_assert(std::atomic<int>::is_always_lock_free,
              "a signal handler may touch lock-free atomics only");

void on_signal(int number) {
  int none = 0;
  const bool first = arrived.compare_exchange_strong(none, number);
  if (!first || scopes.load() == 0) _exit(128 + number);
}

}  // namespace

bool interrupted() { return arrived.load(std::memory_order_relaxed) != 0; }

void install_interrupt_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM}) {
    // A job started with SIGINT ignored (nohup, a background job of a script)
    // keeps it ignored.
    struct sigaction before = {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

InterruptScope::InterruptScope() { scopes.fetch_add(1); }
InterruptScope::~InterruptScope() { scopes.fetch_sub(1); }

Interrupted::Interrupted(const std::string& kept)
    : std::runtime_error(kept), signal_(arrived.load()) {
  if (signal_ == 0) signal_ = SIGINT;
}

}  // namespace ckpt
