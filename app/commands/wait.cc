// SPDX-License-Identifier: Apache-2.0
// Waits until somebody else's save has finished.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <thread>

#include "app/command.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "formats/format.h"
#include "lib/failures.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// "90", "90s", "10m", "2h"
Seconds duration_value(const std::string& option, const std::string& text) {
  double count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, count);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  const double factor = unit.empty() || unit == "s" ? 1
                        : unit == "m"               ? 60
                        : unit == "h"               ? 3600
                                                    : 0;
  if (failure != std::errc{} || !(count >= 0) || factor == 0 || count > 1e9)
    throw usage_error({}, "{} '{}': expected a time as 90s, 10m or 2h", option,
                      text::printable(text));
  return Seconds(count * factor);
}

// What a save changes while it is running.
struct FileState {
  std::string path;
  uint64_t size = 0;
  int64_t changed = 0;
  bool operator==(const FileState&) const = default;
};
using TreeState = std::vector<FileState>;

// Files come and go while they are listed. What can't be examined is left out;
// next time it is there or not.
TreeState state_of(const std::string& path) {
  TreeState state;
  const auto add = [&state](const fs::path& file) {
    std::error_code failure;
    const uint64_t size = fs::file_size(file, failure);
    if (failure) return;
    const auto changed = fs::last_write_time(file, failure);
    if (failure) return;
    using std::chrono::nanoseconds;  // libc++ counts in 128 bits
    const auto when =
        std::chrono::duration_cast<nanoseconds>(changed.time_since_epoch());
    state.push_back({file.string(), size, when.count()});
  };
  std::error_code failure;
  if (!fs::is_directory(path, failure)) {
    add(path);
    return state;
  }
  fs::recursive_directory_iterator walk(
      path, fs::directory_options::skip_permission_denied, failure);
  while (!failure && walk != fs::recursive_directory_iterator()) {
    std::error_code ignored;
    if (walk->is_regular_file(ignored)) add(walk->path());
    walk.increment(failure);
  }
  std::ranges::sort(state, {}, &FileState::path);
  return state;
}

class Wait : public Command {
 public:
  std::string_view name() const override { return "wait"; }
  std::string_view help() const override {
    return "wait until a save has finished: it opens, and nothing changes";
  }
  std::string_view examples() const override {
    return "ckpt wait run/step_5000 --timeout 30m && ckpt verify "
           "run/step_5000\n"
           "ckpt wait run/step_5000 --settle 60s    # a slow file system";
  }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  bool opens();
  ExitCode answer(bool finished) const;

  std::string path_;
  SourceOptions source_;
  Seconds timeout_{3600};
  Seconds settle_{5};
  std::string why_ = "there is nothing";  // it is not finished
  std::optional<Error> unread_;           // why it can't be said whether it is
  std::string found_;
};

void Wait::add_options(CLI::App& app) {
  app.add_option("PATH", path_, "What is being saved; it may not be there yet")
      ->required()
      ->group("Arguments");
  const std::string group = "Waiting";
  app.add_option_function<std::string>(
         "--timeout",
         [this](const std::string& text) {
           timeout_ = duration_value("--timeout", text);
         },
         "Give up after this long (default 1h)")
      ->type_name("TIME")
      ->group(group);
  app.add_option_function<std::string>(
         "--settle",
         [this](const std::string& text) {
           settle_ = duration_value("--settle", text);
         },
         "No file has changed for this long (default 5s)")
      ->type_name("TIME")
      ->group(group);
  add_source_options(app, source_);
}

// Reads only headers. An unfinished save looks like damage.
bool Wait::opens() {
  try {
    const Catalog catalog = formats::open(path_, source_.from, source_.read);
    for (const Problem& problem : catalog.problems) {
      if (problem.severity != Problem::Severity::kDamage) continue;
      why_ = problem.message;
      return false;
    }
    found_ = catalog.path;
    return true;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kMissing &&
        error.code() != ExitCode::kDamaged && error.code() != ExitCode::kIo)
      throw;
    failures::forget();
    why_ = error.what();
    unread_.reset();
    if (error.code() == ExitCode::kIo) unread_ = error;
    return false;
  }
}

ExitCode Wait::answer(bool finished) const {
  if (!finished && unread_) throw *unread_;
  if (output.json) {
    JsonWriter json;
    json.begin_document("wait").member("path", path_);
    json.member("finished", finished);
    json.text_or_null("found", found_);
    json.text_or_null("why", finished ? "" : why_);
    json.end_object();
    print(std::move(json).text());
  } else if (finished) {
    print(text::printable(found_) + "\n");
  } else {
    say(fmt::format("{}: not finished in {:.0f} s: {}", text::printable(path_),
                    timeout_.count(), why_));
  }
  return finished ? ExitCode::kDone : ExitCode::kNegative;
}

ExitCode Wait::run() {
  if (io::is_url(path_))
    throw usage_error({}, "wait watches files of this machine, and {} is none",
                      path_)
        .with_hint("ckpt verify says whether what is there is whole");
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout_);
  TreeState state = state_of(path_);
  Clock::time_point changed = Clock::now();
  bool tried = false;  // to open this state: it won't open next time, either
  for (;;) {
    const Clock::time_point now = Clock::now();
    const bool settled = now - changed >= settle_;
    if (!state.empty() && settled && !tried) {
      tried = true;
      if (opens()) return answer(true);
      spdlog::info("not yet: {}", why_);
    } else if (!state.empty() && !settled) {
      why_ = "files still change";
    }
    if (now >= end) return answer(false);
    std::this_thread::sleep_for(
        std::min({Seconds(1), Seconds(end - now),
                  std::max(Seconds(0.05), settle_ / 4)}));
    TreeState next = state_of(path_);
    if (next == state) continue;
    state = std::move(next);
    changed = Clock::now();
    tried = false;
  }
}

}  // namespace

std::unique_ptr<Command> make_wait() { return std::make_unique<Wait>(); }

}  // namespace ckpt::app
