// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>

#include "app/command.h"
#include "app/commands/commands.h"
#include "app/commands/plan_file.h"
#include "formats/unrecognized.h"

namespace ckpt::app {
namespace {

std::string word_of(When when) {
  return when == When::kAlways ? "always" : "never";
}

class Run : public Command {
 public:
  std::string_view name() const override { return "run"; }
  std::string_view help() const override {
    return "run a plan that a dry run made, if nothing has changed since";
  }
  std::string_view examples() const override {
    return "ckpt reshard step_5000 out --tp 8 --dry-run -o plan.json\n"
           "ckpt run plan.json";
  }
  void add_options(CLI::App& app) override {
    app.add_option("PLAN", path_, "What --dry-run -o FILE wrote")
        ->required()
        ->group("Arguments");
    app.add_flag("--resume", resume_, "Resume an interrupted run")
        ->group("Writing");
  }
  ExitCode run() override {
    formats::check_path(path_);
    PlannedCommand planned = read_plan(path_);
    std::error_code failed;
    std::filesystem::current_path(planned.directory, failed);
    if (failed) throw io_error(planned.directory, "enter", failed.value());
    std::vector<std::string> words = std::move(planned.words);
    if (resume_) words.push_back("--resume");
    if (output.json) words.push_back("--json");
    if (output.verbosity < 0) words.push_back("-q");
    for (int i = 0; i < output.verbosity; ++i) words.push_back("-v");
    if (output.progress_json)
      words.push_back("--progress=json");
    else if (output.progress != When::kAuto)
      words.push_back("--progress=" + word_of(output.progress));
    if (output.color != When::kAuto)
      words.push_back("--color=" + word_of(output.color));
    return static_cast<ExitCode>(run_words(std::move(words)));
  }

 private:
  std::string path_;
  bool resume_ = false;
};

}  // namespace

std::unique_ptr<Command> make_run() { return std::make_unique<Run>(); }

}  // namespace ckpt::app
