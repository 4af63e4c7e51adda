// SPDX-License-Identifier: Apache-2.0
#include "app/options/ranks.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string_view>

#include "app/options/options.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "ckpt/error.h"
#include "reshard/ranks/job.h"

namespace ckpt::app {
namespace {

void take_exchange(const std::string& text) {
  struct Row {
    std::string_view text;
    ranks::Mode mode;
  };
  constexpr Row kRows[] = {{"auto", ranks::Mode::kAuto},
                           {"read", ranks::Mode::kRead},
                           {"send", ranks::Mode::kSend}};
  for (const Row& row : kRows) {
    if (row.text != text) continue;
    ranks::Sharing sharing = ranks::sharing();
    sharing.mode = row.mode;
    return ranks::set_sharing(sharing);
  }
  throw usage_error({}, "--exchange '{}': expected auto, read or send", text);
}

void take_buffer(const std::string& size) {
  ranks::Sharing sharing = ranks::sharing();
  sharing.buffer = std::max<uint64_t>(1, size_value("--exchange-buffer", size));
  ranks::exchange_buffer(sharing.buffer, UINT64_MAX);  // refuses what is tiny
  ranks::set_sharing(sharing);
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
         "one rank, send does both by messages")
      ->type_name("HOW")
      ->group("Resources");
  app.add_option_function<std::string>(
         "--exchange-buffer", take_buffer,
         "Largest message of --exchange send (default 4MiB); each rank holds "
         "12 of them, a part of --max-mem")
      ->type_name("SIZE")
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
    json.member("bytes_sent", account.bytes_sent);
    json.member("bytes_received", account.bytes_received);
    json.member("messages", account.messages);
    json.member("rounds", account.rounds);
    json.member("plan_bytes", account.task_bytes);
    json.member("seconds", account.seconds);
    json.end_object();
  }
  json.end_array();
}

}  // namespace ckpt::app
