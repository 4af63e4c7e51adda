// SPDX-License-Identifier: Apache-2.0
#include "app/job.h"

#include <memory>

#include "app/print/console.h"
#include "app/print/failure.h"
#include "ckpt/error.h"
#include "reshard/ranks/job.h"

namespace ckpt::app {
namespace {

// A rank that can't continue takes all others with it, because they wait for
// it.
int work_for(ranks::Link& link) {
  try {
    return ranks::serve(link);
  } catch (...) {
    const int status = report_current_exception();
    link.abort(status);
    return status;
  }
}

int lead(std::unique_ptr<ranks::Link> link, const std::function<int()>& run) {
  const std::shared_ptr<ranks::Link> wire = std::move(link);
  try {
    ranks::Job job(wire);
    ranks::set_current(&job);
    const int status = run();
    ranks::set_current(nullptr);
    job.finish(status);
    return status;
  } catch (...) {
    const int status = report_current_exception();
    wire->abort(status);
    return status;
  }
}

}  // namespace

int run_in_job(const std::function<int()>& command) {
  std::unique_ptr<ranks::Link> link;
  try {
    link = ranks::join_job();
  } catch (const Error& error) {
    // They all fail alike, so only one says so.
    return ranks::find_launch().rank == 0 ? report_current_exception()
                                          : static_cast<int>(error.code());
  }
  if (!link) return command();
  return link->rank() == 0 ? lead(std::move(link), command) : work_for(*link);
}

}  // namespace ckpt::app
