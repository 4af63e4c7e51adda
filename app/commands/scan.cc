// SPDX-License-Identifier: Apache-2.0
// What would run if these files were loaded elsewhere? The verdict alone, for
// CI.
#include "formats/scan/scan.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/command.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "formats/unrecognized.h"
#include "lib/failures.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

using scan::FileScan;
using scan::Global;
using scan::Verdict;

constexpr std::string_view kScanExamples =
    "ckpt scan model.pt                     # exit 8: loading it runs code\n"
    "ckpt scan downloads step_5000          # every file below\n"
    "ckpt scan downloads -v                 # and the harmless globals\n"
    "ckpt scan downloads --json";

class Scan : public Command {
 public:
  std::string_view name() const override { return "scan"; }
  std::string_view help() const override {
    return "find what runs code when a file is loaded elsewhere";
  }
  std::string_view examples() const override { return kScanExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  std::string json() const;
  void print_text() const;

  std::vector<std::string> paths_;
  std::vector<FileScan> files_;
  uint64_t max_mem_ = 0;
};

void Scan::add_options(CLI::App& app) {
  app.add_option("PATH", paths_, "Files and directories")
      ->required()
      ->expected(1, -1)
      ->group("Arguments");
  add_memory_option(app, max_mem_);
}

void write_global(JsonWriter& json, const Global& global) {
  json.begin_object();
  json.text_or_null("module", global.mention.module);
  json.member("name", global.mention.name);
  json.key("uses").begin_array();
  for (const std::string_view use : pickle::use_names(global.mention.uses))
    json.value(use);
  json.end_array();
  json.member("allowed", global.harmless);
  json.member("offset", global.mention.offset);
  json.text_or_null("inside", global.inside);
  json.text_or_null("loader", global.loader);
  json.text_or_null("where", global.where);
  json.member("asked", global.asked);
  json.end_object();
}

std::string Scan::json() const {
  JsonWriter json;
  json.begin_document("scan");
  json.member("ok", std::ranges::all_of(files_, [](const FileScan& file) {
                return file.verdict <= Verdict::kSafe;
              }));
  json.key("files").begin_array();
  for (const FileScan& file : files_) {
    json.begin_object();
    json.member("path", file.path);
    json.member("verdict", scan::name(file.verdict));
    json.member("pickles", file.pickles);
    json.text_or_null("problem", file.problem);
    json.key("globals").begin_array();
    for (const Global& global : file.globals) write_global(json, global);
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return std::move(json).text();
}

std::string line_of(const FileScan& file, const Global& global) {
  return fmt::format("{}: {}: {}", global.harmless ? "allowed" : "executes",
                     text::printable(file.path),
                     text::printable(scan::describe(global)));
}

void Scan::print_text() const {
  size_t counts[4] = {};
  uint64_t pickles = 0;
  for (const FileScan& file : files_) {
    ++counts[static_cast<size_t>(file.verdict)];
    pickles += file.pickles;
    for (const Global& global : file.globals)
      if (!global.harmless || output.verbosity > 0)
        print_folded(line_of(file, global) + "\n");
    if (!file.problem.empty())
      print_folded(fmt::format("unreadable: {}: {}\n",
                               text::printable(file.path),
                               text::printable(file.problem)));
  }
  const size_t executes = counts[static_cast<size_t>(Verdict::kExecutes)];
  const size_t unread = counts[static_cast<size_t>(Verdict::kUnreadable)];
  const std::string verdict = executes > 0 ? styled("executes", Style::kRed)
                              : unread > 0 ? styled("unreadable", Style::kRed)
                                           : styled("safe", Style::kGreen);
  print_folded(fmt::format("{}: {}, {}, {} run code, {} can't be parsed\n",
                           verdict, text::counted(files_.size(), "file"),
                           text::counted(pickles, "pickle"), executes, unread));
}

ExitCode Scan::run() {
  for (const std::string& path : paths_) {
    formats::check_path(path);
    failures::add_source(path);
    std::vector<FileScan> found = scan::scan_path(path);
    std::ranges::move(found, std::back_inserter(files_));
  }
  Verdict worst = Verdict::kNoPickle;
  for (const FileScan& file : files_) worst = std::max(worst, file.verdict);
  if (output.json)
    print(json());
  else if (output.verbosity >= 0 || worst > Verdict::kSafe)
    print_text();
  if (worst == Verdict::kExecutes) return ExitCode::kUnsafe;
  if (worst == Verdict::kUnreadable) return ExitCode::kDamaged;
  return ExitCode::kDone;
}

}  // namespace

std::unique_ptr<Command> make_scan() { return std::make_unique<Scan>(); }

}  // namespace ckpt::app
