// SPDX-License-Identifier: Apache-2.0
// Thins out the steps of a run's folder.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/table.h"
#include "ckpt/keep.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kPruneExamples =
    "ckpt prune run --keep-last 3             # only says what would go\n"
    "ckpt prune run --keep-last 3 --keep-every 5000 --delete\n"
    "ckpt prune run --keep-last 1 --keep-best eval_loss";

class PruneCommand : public Command {
 public:
  std::string_view name() const override { return "prune"; }
  std::string_view help() const override {
    return "delete old steps of a run; without --delete, say which";
  }
  std::string_view examples() const override { return kPruneExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  std::string json(const Pruned& found) const;
  std::string text(const Pruned& found) const;

  std::string root_;
  PruneOptions options_;
  bool dry_run_ = false;
};

void PruneCommand::add_options(CLI::App& app) {
  app.add_option("ROOT", root_, "The folder that the steps are in")
      ->required()
      ->group("Arguments");
  const std::string group = "What stays (by any of these)";
  app.add_option("--keep-last", options_.keep_last,
                 "The newest N complete steps")
      ->check(CLI::Range(uint64_t{1}, uint64_t{INT64_MAX}))
      ->type_name("N")
      ->group(group);
  app.add_option("--keep-every", options_.keep_every,
                 "Steps whose number is a multiple of K")
      ->check(CLI::Range(uint64_t{1}, uint64_t{INT64_MAX}))
      ->type_name("K")
      ->group(group);
  app.add_option("--keep-best", options_.keep_best,
                 "The step with the best METRIC[:min|max] in "
                 "trainer_state.json; of a loss, the least")
      ->type_name("METRIC")
      ->group(group);
  const std::string how = "How";
  app.add_flag("--delete", options_.remove, "Delete what does not stay")
      ->group(how);
  app.add_flag("-n,--dry-run", dry_run_, "Delete nothing, even with --delete")
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

std::string PruneCommand::json(const Pruned& found) const {
  JsonWriter json;
  json.begin_document("prune").member("path", root_);
  json.member("deleted", options_.remove).member("bytes", found.bytes);
  json.key("steps").begin_array();
  for (const PrunedStep& step : found.steps) {
    json.begin_object().member("name", step.name);
    if (step.number) json.member("step", *step.number);
    json.member("bytes", step.bytes).member("complete", step.complete);
    json.member("fate", step.gone ? "deleted" : step.goes ? "goes" : "stays");
    json.key("why").begin_array();
    for (const std::string& why : step.why) json.value(why);
    json.end_array().end_object();
  }
  json.end_array().key("unfinished").begin_array();
  for (const std::string& path : found.unfinished) json.value(path);
  json.end_array().end_object();
  return std::move(json).text();
}

std::string PruneCommand::text(const Pruned& found) const {
  Table table({Align::kLeft, Align::kRight, Align::kLeft});
  uint64_t count = 0;
  for (const PrunedStep& step : found.steps) {
    count += step.goes;
    table.row({text::printable(step.name), text::iec_size(step.bytes),
               step.gone ? "deleted"
               : step.goes
                   ? "goes"
                   : "stays: " + text::printable(fmt::format(
                                     "{}", fmt::join(step.why, "; ")))});
  }
  std::string said = table.text(0);
  for (const std::string& path : found.unfinished)
    said += fmt::format("{}: {}\n", text::printable(path),
                        options_.remove ? "deleted: an earlier run had begun to"
                                        : "an earlier run did not finish; "
                                          "--delete does");
  const std::string of = fmt::format("{} of {}, {}", count,
                                     text::counted(found.steps.size(), "step"),
                                     text::iec_size(found.bytes));
  if (options_.remove) return said + "deleted " + of + "\n";
  if (count == 0) return said + "nothing would go\n";
  return said + of + " would go; --delete deletes\n";
}

ExitCode PruneCommand::run() {
  if (dry_run_) options_.remove = false;
  const Pruned found = prune(root_, options_);
  if (output.json)
    print(json(found));
  else if (output.verbosity >= 0)
    print_folded(text(found));
  return ExitCode::kDone;
}

}  // namespace

std::unique_ptr<Command> make_prune() {
  return std::make_unique<PruneCommand>();
}

}  // namespace ckpt::app
