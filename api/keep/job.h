// SPDX-License-Identifier: Apache-2.0
// A command that outlives whoever started it, and leaves word of how it ended:
//
//   watch ──fork──► keeper ──fork──► command
//                     └─ holds the lock of STATE.run, and writes the status
//                        into it when the command has ended
//
//   STATE.run   "2 checkpoint-30\n" when it begins, then "0\n"
//
// Whoever comes after a kill waits for the lock. If there is a status then, the
// command is known to have ended; if not, it was killed with its keeper, or had
// not begun.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ckpt::library {

struct JobEnd {
  std::string step;
  uint32_t tries = 0;
  std::optional<int> status;  // none: it did not come to its end
};

// What an earlier run left in `place`; nothing if it left nothing. Waits for a
// command that is still running, after `waits()`. Throws Interrupted.
std::optional<JobEnd> earlier_job(const std::string& place,
                                  const std::function<void()>& waits);

// Runs a command to its end. A signal is passed on to it. `to_stderr`: what it
// prints goes there. Throws kIo if it can't be started.
JobEnd run_job(const std::string& place, const std::string& step,
               uint32_t tries, const std::vector<std::string>& command,
               bool to_stderr);

// The end was noted elsewhere.
void forget_job(const std::string& place);

// Throws usage_error if there is no program of that name.
void check_program(const std::string& name);

}  // namespace ckpt::library
