// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "api/keep/changes.h"
#include "api/keep/job.h"
#include "api/keep/steps.h"
#include "api/keep/watch_state.h"
#include "ckpt/check.h"
#include "ckpt/error.h"
#include "ckpt/keep.h"
#include "formats/unrecognized.h"
#include "lib/failures.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/remote_below.h"
#include "lib/session.h"
#include "lib/text/format.h"

namespace ckpt {
namespace {

using library::JobEnd;
using library::StepRow;
using library::WatchState;

constexpr auto kPlaceholders =
    std::to_array<std::string_view>({"{step}", "{name}", "{root}"});

// A misspelt name would be passed on as it stands, and the command would run
// for every step with that. "${NAME}" is a shell's, "{ print }" another's.
// False: nothing of the command differs from step to step.
bool names_step(const std::vector<std::string>& command) {
  bool differs = false;
  for (const std::string& word : command)
    for (size_t at = word.find('{'); at != word.npos;
         at = word.find('{', at + 1)) {
      const size_t end =
          std::min(word.find_first_not_of("abcdefghijklmnopqrstuvwxyz"
                                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ_",
                                          at + 1),
                   word.size());
      if (end == at + 1 || end == word.size() || word[end] != '}' ||
          (at > 0 && word[at - 1] == '$'))
        continue;
      const std::string found = word.substr(at, end + 1 - at);
      if (std::ranges::find(kPlaceholders, found) == kPlaceholders.end())
        throw usage_error({}, "the command has {}: there is no such name",
                          found)
            .with_hint(
                "names are {step}, {name} and {root}; braces of the command's "
                "own need a space inside: { print }");
      differs = differs || found != "{root}";
    }
  return differs;
}

std::string with_names(std::string word,
                       const std::map<std::string, std::string>& names) {
  std::string text;
  for (size_t at = 0; at < word.size();) {
    const auto found = std::ranges::find_if(names, [&](const auto& one) {
      return word.compare(at, one.first.size(), one.first) == 0;
    });
    text += found == names.end() ? std::string(1, word[at]) : found->second;
    at += found == names.end() ? 1 : found->first.size();
  }
  return text;
}

std::string real_root(const std::string& root) {
  if (io::is_url(root)) return root;
  std::error_code failed;
  const auto found = std::filesystem::weakly_canonical(root, failed);
  return failed ? root : found.string();
}

class Watching {
 public:
  Watching(const std::string& root, const WatchOptions& options);
  std::vector<WatchedStep> run();

 private:
  bool is_no_root();
  std::vector<StepRow> list();
  std::vector<WatchedStep> round();
  void take_up_earlier();
  bool is_new(const StepRow& row) const;
  bool is_settled(const StepRow& row);
  std::string why_not(const StepRow& row) const;
  WatchedStep described(const StepRow& row,
                        const std::set<std::string>& twice) const;
  void work_on(const StepRow& row, WatchedStep& step);
  void record(const JobEnd& end);
  void wait();
  void tell(const std::string& line) const {
    if (options_.note) options_.note(line);
  }
  [[noreturn]] void stop() const {
    throw Interrupted(fmt::format(
        "stopped; what was done is noted in {}; the same command goes on",
        state_.path()));
  }

  const std::string root_;
  const WatchOptions& options_;
  WatchState state_;
  library::Changes changes_;
  bool began_ = false;  // it is a root of steps, or nothing is in it yet
  double soonest_ = 0;  // seconds until a step has settled; 0: none waits
  std::map<std::string, std::string> told_;  // what is the same every round
  std::set<std::string> worked_on_;          // of a run that ends
};

Watching::Watching(const std::string& root, const WatchOptions& options)
    : root_(root),
      options_(options),
      state_(options.state.empty()
                 ? default_watch_state(real_root(root), options.command)
                 : options.state,
             real_root(root), options.dry_run) {
  tell("the state is in " + state_.path());
  if (!names_step(options.command))
    tell(
        "the command has neither {step} nor {name}: it is the same for every "
        "step");
}

// A root without a step is one that has not begun. What holds checkpoints but
// no steps never will; but the first save of all may look like that before its
// trainer has signed it, so what is still written to is looked at again.
bool Watching::is_no_root() {
  if (began_) return false;
  return options_.dry_run || is_settled({.name = {},
                                         .path = root_,
                                         .number = {},
                                         .trainer = {},
                                         .format = {},
                                         .saved = library::last_change(root_),
                                         .parts = {},
                                         .why = {}});
}

std::vector<StepRow> Watching::list() {
  if (io::is_url(root_)) io::forget_remote();
  const formats::ReadOptions read{
      .family = options_.open.family,
      .shard_dims_file = options_.open.shard_dims_file,
      .restrict_globals = options_.open.restrict_globals,
      .trainer = options_.trainer};
  const Session::Own session;
  std::vector<StepRow> rows;
  const uint64_t mark = failures::mark();
  try {
    rows = library::steps_in(root_, options_.open.format, read);
    if (rows.empty() && is_no_root()) throw library::not_a_root(root_);
    began_ = began_ || !rows.empty();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kMissing &&
        error.code() != ExitCode::kDamaged)
      throw;
    if (const auto failed = failures::since(mark, root_)) throw *failed;
    if (formats::checkpoints_below(root_, {}, true).empty())
      began_ = true;
    else if (is_no_root())
      throw;
  }
  std::erase_if(rows, [](const StepRow& row) {
    return !row.number || io::base_name(row.path).starts_with("last");
  });
  std::ranges::stable_sort(rows, {},
                           [](const StepRow& row) { return *row.number; });
  return rows;
}

bool Watching::is_new(const StepRow& row) const {
  const WatchState::Step known = state_.of(row.name);
  return row.complete && !known.done;
}

// A time to come says nothing: the clocks of two machines differ.
bool Watching::is_settled(const StepRow& row) {
  const double age = std::difftime(::time(nullptr), row.saved);
  if (row.saved <= 0 || age < 0 || age >= options_.settle) return true;
  const double left = options_.settle - age;
  soonest_ = soonest_ == 0 ? left : std::min(soonest_, left);
  return false;
}

// "" if the step is as it should be.
std::string Watching::why_not(const StepRow& row) const {
  try {
    const Report report = verify(row.path, {.deep = options_.deep,
                                            .quick = !options_.deep,
                                            .open = options_.open});
    if (report.ok) return "";
    for (const Problem& problem : report.problems)
      if (problem.severity != Problem::Severity::kNote) return problem.message;
    return std::string(ckpt::name(report.verdict));
  } catch (const Error& error) {
    failures::forget();
    return error.problem();
  }
}

WatchedStep Watching::described(const StepRow& row,
                                const std::set<std::string>& twice) const {
  WatchedStep step{.name = row.name,
                   .path = row.path,
                   .number = row.number,
                   .why = {},
                   .command = {}};
  std::string own = io::base_name(row.path);
  if (twice.contains(own)) {
    own = row.name;
    std::ranges::replace(own, '/', '-');
  }
  const std::map<std::string, std::string> names{
      {"{step}", row.path}, {"{name}", own}, {"{root}", root_}};
  for (const std::string& word : options_.command)
    step.command.push_back(with_names(word, names));
  return step;
}

void Watching::record(const JobEnd& end) {
  state_.set(
      end.step,
      {.done = *end.status == 0, .status = *end.status, .tries = end.tries});
  library::forget_job(state_.run_path());
}

// What was killed before it could note how its command ended.
void Watching::take_up_earlier() {
  const auto end = library::earlier_job(state_.run_path(), [this] {
    tell("waiting for the command that an earlier run has begun");
  });
  if (!end) return;
  if (end->status)
    record(*end);
  else
    library::forget_job(state_.run_path());
}

void Watching::work_on(const StepRow& row, WatchedStep& step) {
  const WatchState::Step known = state_.of(row.name);
  step.tries = known.tries;
  step.status = known.status;
  if (known.tries >= options_.tries) {
    step.result = Watched::kGivenUp;
    step.why = fmt::format("the command ended with {} in {} {}", known.status,
                           known.tries, known.tries == 1 ? "try" : "tries");
    return;
  }
  if (step.why = why_not(row); !step.why.empty()) {
    step.result = Watched::kNotVerified;
    return;
  }
  if (options_.dry_run) {
    step.result = Watched::kWouldRun;
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  const JobEnd end =
      library::run_job(state_.run_path(), row.name, known.tries + 1,
                       step.command, options_.keep_stdout);
  step.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  const bool stopped = interrupted() && (!end.status || *end.status > 128);
  if (stopped) {
    library::forget_job(state_.run_path());
    stop();
  }
  if (!end.status)
    throw Error(ExitCode::kIo, {row.path, {}},
                "the process that kept its command was killed",
                "the same command runs it again");
  record(end);
  step.tries = end.tries;
  step.status = *end.status;
  if (step.status == 0) return;
  step.result =
      step.tries >= options_.tries ? Watched::kGivenUp : Watched::kFailed;
  step.why = fmt::format("the command ended with {}, try {} of {}", step.status,
                         step.tries, options_.tries);
}

std::vector<WatchedStep> Watching::round() {
  std::vector<WatchedStep> all;
  soonest_ = 0;
  const std::vector<StepRow> rows = list();
  std::set<std::string> once, twice;
  for (const StepRow& row : rows)
    if (!once.insert(io::base_name(row.path)).second)
      twice.insert(io::base_name(row.path));
  std::vector<std::string> folders{root_};
  for (const StepRow& row : rows) {
    folders.push_back(io::parent(row.path));
    if (!state_.of(row.name).done) folders.push_back(row.path);
  }
  changes_.look_at(folders);
  for (const StepRow& row : rows) {
    if (interrupted()) stop();
    if (!is_new(row) || worked_on_.contains(row.name)) continue;
    if (!options_.dry_run && !is_settled(row)) continue;
    if (options_.once) worked_on_.insert(row.name);
    WatchedStep step = described(row, twice);
    work_on(row, step);
    const auto told = told_.find(row.name);
    const bool same =
        step.seconds == 0 && told != told_.end() && told->second == step.why;
    if (options_.done && !same) options_.done(step);
    told_[row.name] = step.why;
    all.push_back(std::move(step));
  }
  return all;
}

void Watching::wait() {
  double seconds = options_.interval;
  if (soonest_ > 0) seconds = std::min(seconds, soonest_);
  // A save makes many changes; one look serves all of a second.
  const double least = std::min(seconds, 1.0);
  std::this_thread::sleep_for(std::chrono::duration<double>(least));
  if (!interrupted()) changes_.wait(seconds - least);
}

std::vector<WatchedStep> Watching::run() {
  const InterruptScope scope;
  if (!options_.dry_run) take_up_earlier();
  std::vector<WatchedStep> all;
  for (;;) {
    std::vector<WatchedStep> some = round();
    if (options_.once || options_.dry_run)
      std::ranges::move(some, std::back_inserter(all));
    if (options_.dry_run || (options_.once && soonest_ == 0)) return all;
    wait();
    if (interrupted()) stop();
  }
}

}  // namespace

std::string_view name(Watched result) {
  switch (result) {
    case Watched::kDone:
      return "done";
    case Watched::kFailed:
      return "failed";
    case Watched::kGivenUp:
      return "given_up";
    case Watched::kNotVerified:
      return "not_verified";
    case Watched::kWouldRun:
      return "would_run";
  }
  return "";
}

std::vector<WatchedStep> watch(const std::string& root,
                               const WatchOptions& options) {
  if (options.command.empty())
    throw usage_error({root, {}}, "a command to run is missing");
  if (!io::is_url(root) && !io::is_directory(root))
    throw missing_error({root, {}}, "no such directory")
        .with_hint("name the directory that the steps come into");
  names_step(options.command);  // before anything is made
  library::check_program(options.command[0]);
  return Watching(root, options).run();
}

}  // namespace ckpt
