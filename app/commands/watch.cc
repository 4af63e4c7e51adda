// SPDX-License-Identifier: Apache-2.0
// Runs a command for each new step of a run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "api/keep/words.h"
#include "app/command.h"
#include "app/options/duration.h"
#include "app/options/options.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "ckpt/keep.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kWatchExamples =
    "ckpt watch run --do 'ckpt convert {step} {name}-hf --to safetensors'\n"
    "ckpt watch run --do 'aws s3 sync {step} s3://b/{name}' --interval 5m\n"
    "ckpt watch run --once --do './evaluate.sh {step}'   # from cron";

std::string spelled(const std::vector<std::string>& command) {
  std::string line;
  for (const std::string& word : command)
    line += (line.empty() ? "" : " ") + text::shell_word(word);
  return line;
}

class WatchCommand : public Command {
 public:
  std::string_view name() const override { return "watch"; }
  std::string_view help() const override {
    return "run a command for each new complete step of a run, once";
  }
  std::string_view examples() const override { return kWatchExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  std::string json(const std::vector<WatchedStep>& steps) const;
  std::string line(const WatchedStep& step) const;

  std::string root_;
  std::string do_;
  WatchOptions options_;
};

void WatchCommand::add_options(CLI::App& app) {
  app.add_option("ROOT", root_, "The folder or URL that the steps come into")
      ->required()
      ->group("Arguments");
  const std::string group = "What to do";
  app.add_option(
         "--do", do_,
         "The command; {step} is a step's path, {name} its name, {root} "
         "the root. It is split into words, and no shell reads it")
      ->required()
      ->type_name("CMD")
      ->group(group);
  app.add_flag("--deep", options_.deep,
               "Read all of a step before, not only its headers and sizes")
      ->group(group);
  app.add_option("--tries", options_.tries,
                 "Give up a step when its command has failed N times (default "
                 "3)")
      ->check(CLI::Range(uint64_t{1}, uint64_t{INT32_MAX}))
      ->type_name("N")
      ->group(group);
  const std::string when = "When";
  app.add_flag("--once", options_.once,
               "Do what is there and end, with status 1 if any step failed")
      ->group(when);
  const auto time = [&](const char* option, double& value, const char* help) {
    app.add_option_function<std::string>(
           option,
           [option, &value](const std::string& text) {
             value = duration_value(option, text).count();
           },
           help)
        ->type_name("TIME")
        ->group(when);
  };
  time("--interval", options_.interval,
       "Look again after this long, if nothing is told sooner (default 30s)");
  time("--settle", options_.settle,
       "No file of a step has changed for this long (default 5s)");
  const std::string how = "How";
  app.add_flag("-n,--dry-run", options_.dry_run,
               "Only show the commands that would run now")
      ->group(how);
  app.add_option("--state", options_.state,
                 "Where it is noted what was done (default: a file for this "
                 "root and command in ~/.local/state/ckpt/watch)")
      ->type_name("FILE")
      ->group(how);
  app.add_option("--from", options_.open.format,
                 "Format of the steps, instead of detecting it")
      ->type_name("FORMAT")
      ->group(how);
  app.add_option("--trainer", options_.trainer,
                 "Trainer that wrote the run, instead of detecting it")
      ->type_name("NAME")
      ->group(how);
}

std::string WatchCommand::json(const std::vector<WatchedStep>& steps) const {
  JsonWriter json;
  json.begin_document("watch").member("path", root_);
  json.member("state", options_.state);
  json.key("steps").begin_array();
  for (const WatchedStep& step : steps) {
    json.begin_object().member("name", step.name);
    if (step.number) json.member("step", *step.number);
    json.member("result", ckpt::name(step.result));
    json.member("status", step.status).member("tries", step.tries);
    json.member("seconds", step.seconds).text_or_null("why", step.why);
    json.key("command").begin_array();
    for (const std::string& word : step.command) json.value(word);
    json.end_array().end_object();
  }
  json.end_array().end_object();
  return std::move(json).text();
}

std::string WatchCommand::line(const WatchedStep& step) const {
  const std::string name = text::printable(step.name);
  switch (step.result) {
    case Watched::kDone:
      return fmt::format("{}: done in {:.1f} s\n", name, step.seconds);
    case Watched::kWouldRun:
      return spelled(step.command) + "\n";
    case Watched::kFailed:
      return fmt::format("{}: failed: {}; it is run again\n", name, step.why);
    case Watched::kGivenUp:
      return fmt::format("{}: given up: {}; more --tries run it again\n", name,
                         step.why);
    case Watched::kNotVerified:
      return fmt::format("{}: not taken yet: {}\n", name,
                         text::printable(step.why));
  }
  return {};
}

ExitCode WatchCommand::run() {
  options_.command = library::command_words(do_, "--do");
  if (options_.state.empty()) {
    std::error_code failed;
    const auto real = std::filesystem::weakly_canonical(root_, failed);
    options_.state =
        default_watch_state(failed ? root_ : real.string(), options_.command);
  } else {
    check_note(options_.state, "--state");
  }
  // This program, not another version of it.
  if (options_.command[0] == "ckpt") {
    std::error_code failed;
    const auto own = std::filesystem::read_symlink("/proc/self/exe", failed);
    if (!failed) options_.command[0] = own.string();
  }
  options_.keep_stdout = output.json;
  options_.note = [this](const std::string& text) {
    if (output.verbosity >= 0) say_note(text);
  };
  // A document for all if there is an end, else one for each step.
  const bool ends = options_.once || options_.dry_run;
  options_.done = [&](const WatchedStep& step) {
    if (output.json && ends) return;
    if (output.json)
      print(json({step}));
    else if (output.verbosity >= 0)
      print_folded(line(step));
    flush();
  };
  const std::vector<WatchedStep> steps = watch(root_, options_);
  if (output.json) print(json(steps));
  if (options_.dry_run) return ExitCode::kDone;
  return std::ranges::all_of(steps,
                             [](const WatchedStep& step) {
                               return step.result == Watched::kDone;
                             })
             ? ExitCode::kDone
             : ExitCode::kNegative;
}

}  // namespace

std::unique_ptr<Command> make_watch() {
  return std::make_unique<WatchCommand>();
}

}  // namespace ckpt::app
