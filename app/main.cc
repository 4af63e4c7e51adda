// SPDX-License-Identifier: Apache-2.0
// What surrounds a command: signals, limits, ranks, and its exit status.
#include <sys/resource.h>

#include <algorithm>

#include "app/commands/commands.h"
#include "app/job.h"
#include "app/print/console.h"
#include "app/print/failure.h"
#include "lib/interrupt.h"

namespace ckpt::app {
namespace {

// A checkpoint of thousands of ranks has as many files, but shells start with a
// limit of 1024. The limit is this process's own; files stay open as long as it
// allows (reshard/sources/sources.h).
void raise_file_limit() {
  constexpr rlim_t kWanted = 16384;
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kWanted)
    return;
  limit.rlim_cur = std::min(limit.rlim_max, kWanted);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Returns the exit status; reports what went wrong.
int run_guarded(const std::vector<std::string>& words) {
  try {
    const int status = run_words(words);
    flush();
    say_held_warnings();
    return status;
  } catch (...) {
    const int failure = report_current_exception();
    // What was printed before the failure is still flushed.
    try {
      flush();
    } catch (const std::exception&) {
    }
    return failure;
  }
}

}  // namespace
}  // namespace ckpt::app

int main(int argc, char** argv) {
  using namespace ckpt::app;
  try {
    ckpt::install_interrupt_handlers();
    raise_file_limit();
    configure({});
    const std::vector<std::string> words(argv + 1, argv + argc);
    return run_in_job([&words] { return run_guarded(words); });
  } catch (...) {
    return report_current_exception();
  }
}
