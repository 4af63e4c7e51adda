// SPDX-License-Identifier: Apache-2.0
#include "lib/interrupt.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ckpt {
namespace {

// Runs `body` in a child with the handlers installed. Returns its exit status,
// or -signal if one killed it.
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    install_interrupt_handlers();
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

TEST_CASE("interrupt: outside a scope a signal ends the process") {
  for (const int number : {SIGINT, SIGTERM}) {
    CAPTURE(number);
    CHECK(in_child([&] {
            raise(number);
            return 1;
          }) == 128 + number);
  }
}

TEST_CASE("interrupt: inside a scope the first signal is a question") {
  CHECK(in_child([] {
          const InterruptScope scope;
          if (interrupted()) return 1;
          raise(SIGTERM);
          if (!interrupted()) return 2;
          const Interrupted stop("kept");
          return stop.signal() == SIGTERM ? 0 : 3;
        }) == 0);
}

TEST_CASE("interrupt: a second signal does not wait") {
  CHECK(in_child([] {
          const InterruptScope scope;
          raise(SIGINT);
          raise(SIGINT);
          return 1;
        }) == 128 + SIGINT);
}

TEST_CASE("interrupt: what nohup ignores stays ignored") {
  CHECK(in_child([] {
          signal(SIGINT, SIG_IGN);
          install_interrupt_handlers();
          raise(SIGINT);
          return interrupted() ? 1 : 0;
        }) == 0);
}

TEST_CASE("interrupt: a closed pipe is an error, not a death") {
  CHECK(in_child([] {
          int ends[2];
          if (pipe(ends) != 0) return 1;
          close(ends[0]);
          return write(ends[1], "x", 1) == -1 ? 0 : 2;
        }) == 0);
}

}  // namespace ckpt
