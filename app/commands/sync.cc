// SPDX-License-Identifier: Apache-2.0
// Makes a folder, or what is below s3:// or gs://, the same as another one.
#include "api/keep/sync.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>

#include "app/command.h"
#include "app/options/options.h"
#include "app/options/rate.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/progress.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kSyncExamples =
    "ckpt sync run /backup/run              # again: only what differs\n"
    "ckpt sync run s3://bucket/run --exclude '*.log'\n"
    "ckpt sync s3://bucket/run run -n\n"
    "ckpt sync run /backup/run --delete-extra";
class SyncCommand : public Command {
 public:
  std::string_view name() const override { return "sync"; }
  std::string_view help() const override {
    return "make one folder or bucket the same as another, by what differs";
  }
  std::string_view examples() const override { return kSyncExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  std::string json(const Synced& done) const;
  std::string text(const Synced& done) const;

  std::string source_, target_;
  SyncOptions options_;
};

void SyncCommand::add_options(CLI::App& app) {
  app.add_option("SRC", source_, "A directory, a file or a URL")
      ->required()
      ->group("Arguments");
  app.add_option("DST", target_, "A directory, s3:// or gs://")
      ->required()
      ->group("Arguments");
  const std::string what = "What";
  app.add_option("--include", options_.include,
                 "Only files that match one of these")
      ->type_name("GLOB")
      ->group(what);
  app.add_option("--exclude", options_.exclude,
                 "No files that match one of these")
      ->type_name("GLOB")
      ->group(what);
  app.add_flag("--delete-extra", options_.delete_extra,
               "Delete what DST has and SRC lacks, once all is copied")
      ->group(what);
  const std::string how = "How";
  app.add_flag("-n,--dry-run", options_.dry_run, "Compare, copy nothing")
      ->group(how);
  app.add_flag_callback(
         "--no-fsync", [&] { options_.sync = false; },
         "Don't wait for the disk")
      ->group(how);
  app.add_flag_callback(
         "--overwrite", [] {}, "Nothing more: what differs is replaced anyway")
      ->group(how);
  add_rate_option(app);
}

std::string SyncCommand::json(const Synced& done) const {
  JsonWriter json;
  json.begin_document("sync").member("source", source_);
  json.member("target", target_).member("dry_run", options_.dry_run);
  json.member("complete", done.complete).member("bytes", done.bytes);
  json.member("bytes_copied", options_.dry_run ? 0 : done.bytes_differ);
  json.member("bytes_differ", done.bytes_differ);
  json.key("files").begin_array();
  for (const SyncedFile& file : done.files) {
    json.begin_object().member("path", file.path);
    json.member("bytes", file.bytes).member("fate", ckpt::name(file.fate));
    json.text_or_null("why", file.why);
    json.end_object();
  }
  json.end_array().key("written").begin_array();
  for (const SyncedFile& file : done.files) {
    if (options_.dry_run ||
        (file.fate != SyncFate::kNew && file.fate != SyncFate::kReplaced))
      continue;
    json.begin_object().member("path", io::join(target_, file.path));
    json.member("bytes", file.bytes).end_object();
  }
  json.end_array().end_object();
  return std::move(json).text();
}

std::string SyncCommand::text(const Synced& done) const {
  std::string said;
  std::array<uint64_t, 6> count{};
  for (const SyncedFile& file : done.files) {
    ++count[static_cast<size_t>(file.fate)];
    if (file.fate == SyncFate::kLeftOut)
      said += fmt::format("left out  {}: {}\n", text::printable(file.path),
                          text::printable(file.why));
    else if (file.fate != SyncFate::kSame &&
             (options_.dry_run || output.verbosity > 0))
      said +=
          fmt::format("{:<8}  {}  {}\n", ckpt::name(file.fate),
                      text::printable(file.path), text::iec_size(file.bytes));
  }
  const auto of = [&](SyncFate fate) {
    return count[static_cast<size_t>(fate)];
  };
  said += fmt::format(
      "{}, {}, {}copied",
      text::counted(of(SyncFate::kNew) + of(SyncFate::kReplaced), "file"),
      text::iec_size(done.bytes_differ), options_.dry_run ? "would be " : "");
  if (of(SyncFate::kReplaced))
    said += fmt::format(" ({} replaced)", of(SyncFate::kReplaced));
  said += fmt::format("; {} {} the same", of(SyncFate::kSame),
                      options_.dry_run ? "are" : "were");
  if (of(SyncFate::kDeleted))
    said += fmt::format("; {} deleted",
                        text::counted(of(SyncFate::kDeleted), "file"));
  if (of(SyncFate::kExtra))
    said += fmt::format(
        "; {} in DST alone{}", text::counted(of(SyncFate::kExtra), "file"),
        options_.delete_extra ? " would be deleted"
        : io::is_url(target_) ? " stays"
                              : ", which --delete-extra deletes");
  return said + "\n";
}

ExitCode SyncCommand::run() {
  options_.note = [](const std::string& text) { say("warning: " + text); };
  const Synced done = library::sync_with(
      source_, target_, options_, make_progress(output), max_rate() != 0);
  if (output.json)
    print(json(done));
  else if (output.verbosity >= 0)
    print_folded(text(done));
  else  // the reason for the status
    for (const SyncedFile& file : done.files)
      if (file.fate == SyncFate::kLeftOut)
        say(fmt::format("left out  {}: {}", text::printable(file.path),
                        text::printable(file.why)));
  return done.complete ? ExitCode::kDone : ExitCode::kNegative;
}

}  // namespace

std::unique_ptr<Command> make_sync() { return std::make_unique<SyncCommand>(); }

}  // namespace ckpt::app
