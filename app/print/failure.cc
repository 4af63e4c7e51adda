// SPDX-License-Identifier: Apache-2.0
#include "app/print/failure.h"

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "ckpt/error.h"
#include "lib/exit_kind.h"
#include "lib/interrupt.h"

namespace ckpt::app {
namespace {

// What is reported about an exception, for people or as JSON.
struct Failure {
  int status = static_cast<int>(ExitCode::kBug);
  std::string_view kind = "bug";
  Where where = {};
  std::string problem;  // without `where`
  std::string hint = {};
};

constexpr std::string_view kReport = "this is a bug in ckpt " CKPT_VERSION
                                     "; please report it with the command line";

bool is_exhausted(const std::error_code& why) {
  return why == std::errc::resource_unavailable_try_again ||
         why == std::errc::not_enough_memory ||
         why == std::errc::too_many_files_open ||
         why == std::errc::too_many_files_open_in_system;
}

// A next step after a system error, if the message has none.
struct NextStep {
  std::string_view said;  // strerror's text
  std::string_view hint;
};
constexpr NextStep kNextSteps[] = {
    {"No such file or directory", "ls shows what is there: is it the path?"},
    {"no such file or directory", "ls shows what is there: is it the path?"},
    {"Is a directory", "give the name of a file"},
    {"Permission denied",
     "ls -ld shows whose it is: ask its owner, or run as a user who may"},
    {"Read-only file system", "choose a target on another file system"},
    {"No space left on device", "free some space, then run it again"},
    {"Disk quota exceeded", "free some of your quota, then run it again"},
    {"Too many open files", "`ulimit -n` raises the limit"},
    {"Input/output error",
     "the disk or network file system failed; `dmesg` may say why"},
    {"Stale file handle",
     "the file was replaced on its server while it was open: run it again"},
};

std::string next_step(std::string_view problem) {
  for (const NextStep& step : kNextSteps)
    if (problem.ends_with(step.said)) return std::string(step.hint);
  return {};
}

Failure current_failure() {
  try {
    throw;
  } catch (const Interrupted& stop) {
    return {.status = 128 + stop.signal(),
            .kind = "interrupted",
            .problem = stop.what()};
  } catch (const Error& error) {
    const bool bug = error.code() == ExitCode::kBug;
    return {.status = static_cast<int>(error.code()),
            .kind = kind_name(error.code()),
            .where = error.where(),
            .problem = error.problem(),
            .hint = !error.hint().empty() ? error.hint()
                    : bug                 ? std::string(kReport)
                                          : next_step(error.problem())};
  } catch (const std::bad_alloc&) {
    return {.status = static_cast<int>(ExitCode::kResource),
            .kind = "resource",
            .problem = "out of memory",
            .hint = "a smaller --max-mem or fewer --threads need less"};
  } catch (const std::system_error& error) {
    // From the C++ library: threads that can't be started, its file system
    // functions.
    if (is_exhausted(error.code()))
      return {
          .status = static_cast<int>(ExitCode::kResource),
          .kind = "resource",
          .problem = std::string("the system gives no more: ") + error.what(),
          .hint =
              "fewer --threads need less; `ulimit -u` and a "
              "container's limits count threads"};
    return {.status = static_cast<int>(ExitCode::kIo),
            .kind = "io",
            .problem = error.what()};
  } catch (const std::exception& error) {
    return {.problem = std::string("internal: ") + error.what(),
            .hint = std::string(kReport)};
  } catch (...) {
    return {.problem = "internal: an exception of unknown type",
            .hint = std::string(kReport)};
  }
}

std::string failure_json(const Failure& failure) {
  JsonWriter json;
  json.begin_document("error").key("error").begin_object();
  json.member("status", failure.status);
  json.member("kind", failure.kind);
  json.text_or_null("path", failure.where.path);
  json.text_or_null("tensor", failure.where.tensor);
  json.member("message", failure.problem);
  json.text_or_null("hint", failure.hint);
  json.end_object();
  const std::vector<std::string> held = take_held_warnings();
  if (!held.empty()) {
    json.key("warnings").begin_array();
    for (const std::string& line : held) json.value(line);
    json.end_array();
  }
  json.end_object();
  return std::move(json).text();
}

}  // namespace

int report_current_exception() {
  const Failure failure = current_failure();
  if (errors_are_json()) {
    say_document(failure_json(failure));
  } else {
    const Error whole(ExitCode::kBug, failure.where, failure.problem);
    say_error(whole.what(), failure.hint);
  }
  return failure.status;
}

}  // namespace ckpt::app
