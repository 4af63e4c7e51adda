// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM, as a question that long loops ask.
//
// Outside an InterruptScope a signal ends the process at once, with 128 +
// signal: nothing is half-done there. Inside one, the first signal only sets a
// flag; code that sees it puts its work into a resumable state and throws
// Interrupted. A second signal ends the process.
#pragma once

#include <stdexcept>
#include <string>

namespace ckpt {

// True once SIGINT or SIGTERM has arrived. Cheap: one relaxed load.
bool interrupted();

// Installs the handlers. The program's main calls it; a library user may, too.
// SIGPIPE and SIGXFSZ are ignored from then on: a closed pipe is an EPIPE, a
// file above `ulimit -f` an EFBIG, like any other failed write.
void install_interrupt_handlers();

// While one is alive, the first signal sets the flag instead of exiting.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

// Thrown after an interrupt. what() says what was kept and how to continue:
// "stopped; 3.2 GiB of 8.0 GiB are kept in X: run again with --resume".
class Interrupted : public std::runtime_error {
 public:
  explicit Interrupted(const std::string& kept);
  int signal() const { return signal_; }  // the exit status is 128 + signal

 private:
  int signal_;
};

}  // namespace ckpt
