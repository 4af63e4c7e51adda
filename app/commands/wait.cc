// SPDX-License-Identifier: Apache-2.0
// Waits until somebody else's save has finished.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "app/command.h"
#include "app/options/duration.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "formats/format.h"
#include "lib/failures.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/remote_below.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// What a save changes while it is running.
struct FileState {
  std::string path;
  uint64_t size = 0;
  int64_t changed = 0;
  bool operator==(const FileState&) const = default;
};
using TreeState = std::vector<FileState>;

// The same on a server, asked anew. What is not there yet, a bucket's name or a
// revision as well, is no failure; a refusal is one, and so is what stays wrong
// after its retries.
TreeState state_of_url(const std::string& url) {
  io::forget_remote();
  TreeState state;
  try {
    const auto facts = io::stat_remote(url);
    if (!facts) return state;
    const auto add = [&state](const std::string& path, struct stat found) {
      state.push_back({path, static_cast<uint64_t>(found.st_size),
                       static_cast<int64_t>(found.st_ino)});
    };
    if (!S_ISDIR(facts->st_mode)) {
      add(url, *facts);
      return state;
    }
    for (const io::RemoteEntry& file : io::files_below(url)) {
      const std::string path = io::join(url, file.path);
      if (const auto found = io::stat_remote(path)) add(path, *found);
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kMissing) throw;
    state.clear();
  }
  std::ranges::sort(state, {}, &FileState::path);
  return state;
}

// Files come and go while they are listed. What can't be examined is left out;
// next time it is there or not.
TreeState state_of(const std::string& path) {
  if (io::is_url(path)) return state_of_url(path);
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

// An upload of ckpt's that has begun to publish, and not ended.
bool is_claimed(const TreeState& state) {
  return std::ranges::any_of(state, [](const FileState& file) {
    return io::base_name(file.path) == ".ckpt-upload";
  });
}

class Wait : public Command {
 public:
  std::string_view name() const override { return "wait"; }
  std::string_view help() const override {
    return "wait until a checkpoint is completely written";
  }
  std::string_view examples() const override {
    return "ckpt wait run/step_5000 --timeout 30m && ckpt verify "
           "run/step_5000\n"
           "ckpt wait run/step_5000 --settle 60s    # a slow file system\n"
           "ckpt wait s3://bucket/run/step_5000 --timeout 2h";
  }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  bool opens();
  Seconds pause(Seconds left);
  ExitCode answer(bool finished) const;

  std::string path_;
  SourceOptions source_;
  Seconds timeout_{3600};
  Seconds settle_{5};
  std::string why_ = "there is nothing";  // it is not finished
  std::optional<Error> unread_;           // why it can't be said whether it is
  std::string found_;
  Seconds server_pause_{0};
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
    // What was replaced while it was read is not finished; another failure of a
    // server, which was asked often enough, is an answer.
    if (io::is_url(path_) && error.code() == ExitCode::kIo &&
        !error.problem().starts_with("the source changed"))
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

// A server is looked at after 1 s, and ever more seldom, up to 15 s, while
// nothing changes; but when files will have settled, if that is sooner.
Seconds Wait::pause(Seconds left) {
  if (!io::is_url(path_))
    return std::min(Seconds(1), std::max(Seconds(0.05), settle_ / 4));
  server_pause_ = std::clamp(server_pause_ * 1.5, Seconds(1), Seconds(15));
  return left > Seconds(0) ? std::min(server_pause_, left) : server_pause_;
}

ExitCode Wait::run() {
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout_);
  TreeState state = state_of(path_);
  Clock::time_point changed = Clock::now();
  bool tried = false;  // to open this state: it won't open next time, either
  for (;;) {
    const Clock::time_point now = Clock::now();
    const bool settled = now - changed >= settle_;
    if (is_claimed(state)) {
      why_ = "an upload to it has not ended (.ckpt-upload)";
    } else if (!state.empty() && settled && !tried) {
      tried = true;
      if (opens()) return answer(true);
      spdlog::info("not yet: {}", why_);
    } else if (!state.empty() && !settled) {
      why_ = "files still change";
    }
    if (now >= end) return answer(false);
    std::this_thread::sleep_for(std::min(
        Seconds(end - now),
        pause(settled ? Seconds(0) : Seconds(settle_ - (now - changed)))));
    TreeState next = state_of(path_);
    if (next == state) continue;
    state = std::move(next);
    server_pause_ = Seconds(0);
    changed = Clock::now();
    tried = false;
  }
}

}  // namespace

std::unique_ptr<Command> make_wait() { return std::make_unique<Wait>(); }

}  // namespace ckpt::app
