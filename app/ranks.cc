#include "app/ranks.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "app/console.h"
#include "app/json_writer.h"
#include "ckpt/error.h"
#include "reshard/ranks/job.h"

namespace ckpt::app {
namespace {

void take_exchange(const std::string& text) {
  if (text == "auto" || text == "read")
    return ranks::set_exchange(text == "read" ? ranks::Exchange::kRead
                                              : ranks::Exchange::kAuto);
  if (text == "send")
    throw resource_error({}, "--exchange send: this build can't do it")
        .with_hint(
            "auto reads each byte once and writes it where it belongs; read "
            "has each file written by one rank; the files are the same");
  throw usage_error({}, "--exchange '{}': expected auto, read or send", text);
}

// A rank that can't go on takes all others with it: they wait for it.
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

void add_ranks_options(CLI::App& app) {
  app.add_option_function<std::string>(
         "--exchange", take_exchange,
         "Under mpirun: auto reads each byte once, read writes each file from "
         "one rank")
      ->type_name("HOW")
      ->group("Resources");
}

int run_in_job(const std::function<int()>& command) {
  std::unique_ptr<ranks::Link> link;
  try {
    link = ranks::join_job();
  } catch (const Error& error) {
    // They all fail alike: one says so.
    return ranks::find_launch().rank == 0 ? report_current_exception()
                                          : static_cast<int>(error.code());
  }
  if (!link) return command();
  return link->rank() == 0 ? lead(std::move(link), command) : work_for(*link);
}

uint32_t rank_count() {
  return ranks::current() ? ranks::current()->size() : 1;
}

void write_ranks(JsonWriter& json) {
  ranks::Job* const job = ranks::current();
  if (!job) return;
  json.key("ranks").begin_array();
  for (const ranks::Account& account : job->accounts()) {
    json.begin_object();
    json.member("host", account.host);
    json.member("bytes_read", account.bytes_read);
    json.member("bytes_written", account.bytes_written);
    json.member("plan_bytes", account.task_bytes);
    json.member("seconds", account.seconds);
    json.end_object();
  }
  json.end_array();
}

}  // namespace ckpt::app
