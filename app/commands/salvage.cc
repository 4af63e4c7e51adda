// SPDX-License-Identifier: Apache-2.0
#include "api/salvage/salvage.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "api/fetch/fetch.h"
#include "api/write/replace.h"
#include "app/command.h"
#include "app/commands/write.h"
#include "app/options/rate.h"
#include "app/options/read_paths.h"
#include "app/options/target_name.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/progress.h"
#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/staging.h"
#include "lib/session.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;

// A checkpoint at a URL, fetched to files beside DST for a command that reads
// it more than once.
//
//   .NAME.ckpt-source/       its files; .ckpt-fetch in it while they come
//   .NAME.ckpt-source.list   when all have come: their versions

class FetchedSource {
 public:
  // Fetches what is not there from an earlier run of the same versions.
  FetchedSource(std::string url, const std::string& target,
                const OutputOptions& output);

  const std::string& path() const { return path_; }
  // The directory of the copies.
  const std::string& folder() const { return folder_; }
  // Name the URL where the copy was named.
  Error named(const Error& error) const;
  std::string shown(std::string text) const;
  void remove() const;

 private:
  const std::string url_;
  std::string folder_;
  std::string path_;  // the folder, or the one file in it
};

constexpr uint64_t kMostList = uint64_t{1} << 30;

// What the server has, and what lies here of it. Empty if those can't be of the
// same version for certain.
std::string list_of_copy(const library::FetchJob& job) {
  std::string text;
  for (const library::FetchFile& file : job.files) {
    const std::string copy = io::join(job.target, file.path);
    if (!file.versioned || !io::is_file(copy)) return "";
    const std::string sum =
        sums::hash_of(io::Handle::open_read(copy), sums::Algorithm::kSha256);
    text += fmt::format("{} {} {}\n", file.tag, sum, file.path);
  }
  return text;
}

void write_list(const std::string& path, const std::string& text) {
  const std::string draft = path + ".new";
  std::error_code failed;
  fs::remove(draft, failed);
  io::Handle::create(draft).write(0, std::string_view(text));
  fs::rename(draft, path, failed);
  if (failed) throw io_error(path, "cannot rename to it", failed.value());
}

FetchedSource::FetchedSource(std::string url, const std::string& target,
                             const OutputOptions& output)
    : url_(std::move(url)) {
  const std::string place = io::staging_place(target);
  folder_ =
      io::join(io::parent(place), "." + io::base_name(place) + ".ckpt-source");
  const std::string list = folder_ + ".list";
  // Always on the disk before the list says so: a later run takes the copy for
  // the source, if its bytes are still those.
  library::FetchJob job;
  job.target = folder_;
  job.paced = max_rate() != 0;
  // Only while it is fetched: what comes is held to the version of this look.
  const Session::Own session;
  Session::current()->watch.begin();
  library::list_files(job, url_, [](const std::string&) { return true; });
  path_ = job.single ? io::join(folder_, job.files[0].path) : folder_;
  Session::current()->watch.ignore_below(folder_);
  if (io::is_file(list)) {
    const std::string copied = list_of_copy(job);
    if (!copied.empty() && io::read_file(list, kMostList) == copied) return;
    remove();
  } else if (!io::is_directory(io::join(folder_, ".ckpt-fetch"))) {
    remove();  // a run ended while it removed it, or before it was listed
  }
  const InterruptScope scope;
  uint64_t bytes = 0;
  for (const library::FetchFile& file : job.files) bytes += file.bytes;
  job.progress = make_progress(output);
  job.progress.begin("fetching", bytes);
  library::fetch_here(job);
  job.progress.end();
  write_list(list, list_of_copy(job));
}

std::string FetchedSource::shown(std::string text) const {
  for (const std::string* const from : {&path_, &folder_})
    for (size_t at = text.find(*from); at != text.npos;
         at = text.find(*from, at + url_.size()))
      text.replace(at, from->size(), url_);
  return text;
}

Error FetchedSource::named(const Error& error) const {
  std::string hint = shown(error.hint());
  if (!hint.empty()) hint += "; ";
  hint += fmt::format(
      "the next run goes on with the copy of the source, or: rm -r {0} "
      "{0}.list",
      text::shell_path(folder_));
  return Error(error.code(), {shown(error.where().path), error.where().tensor},
               shown(error.problem()), hint);
}

void FetchedSource::remove() const {
  std::error_code ignored;
  fs::remove(folder_ + ".list", ignored);
  fs::remove_all(folder_, ignored);
}

constexpr std::string_view kSalvageExamples =
    "ckpt salvage step_5000 sound\n"
    "ckpt salvage step_5000 sound --like step_4000\n"
    "ckpt salvage model.pt sound.pt --partial zeros";

void write_notes(JsonWriter& json, std::string_view key,
                 const std::vector<salvage::Note>& notes) {
  json.key(key).begin_array();
  for (const salvage::Note& note : notes) {
    json.begin_object();
    json.member("file", note.file);
    json.member("what", note.what);
    json.member("inferred", note.inferred);
    json.end_object();
  }
  json.end_array();
}

void write_dims(JsonWriter& json, std::string_view key, const Dims& dims) {
  json.key(key).begin_array();
  for (const uint64_t dim : dims) json.value(dim);
  json.end_array();
}

class Salvage : public Command {
 public:
  std::string_view name() const override { return "salvage"; }
  std::string_view help() const override {
    return "rebuild a sound checkpoint from a damaged one";
  }
  std::string_view examples() const override { return kSalvageExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  library::SalvageOptions options() const;
  library::Salvaged rebuild();
  std::string json(const library::Salvaged& result) const;
  std::string text(const library::Salvaged& result) const;

  std::string source_path_;
  std::string target_path_;
  std::string partial_;
  std::string like_;
  bool dry_run_ = false;
  bool overwrite_ = false;
  bool resume_ = false;
  bool no_fsync_ = false;
  bool no_manifest_ = false;
  SourceOptions source_;
  EngineOptions engine_;
  std::optional<FetchedSource> fetched_;
};

void Salvage::add_options(CLI::App& app) {
  app.add_option("SRC", source_path_, "The damaged checkpoint")
      ->required()
      ->group("Arguments");
  app.add_option("DST", target_path_, "Where the sound one goes")
      ->required()
      ->group("Arguments");
  const std::string group = "Target";
  app.add_option("--partial", partial_,
                 "Write what is left, with zeros or NaN in the gaps")
      ->check(CLI::IsMember({"zeros", "nan"}))
      ->type_name("zeros|nan")
      ->group(group);
  names_either(
      app.add_option("--like", like_,
                     "An older or newer step of the same run: what was where"))
      ->type_name("OTHER")
      ->group(group);
  app.add_flag("-n,--dry-run", dry_run_, "Only say what could be rebuilt")
      ->group(group);
  app.add_flag("--overwrite", overwrite_, "Replace DST when done")
      ->group(group);
  app.add_flag("--resume", resume_, "Resume an interrupted run")->group(group);
  app.add_flag("--no-fsync", no_fsync_, "Do not wait for the disk")
      ->group(group);
  app.add_flag("--no-manifest", no_manifest_, "Write no .ckpt-manifest.json")
      ->group(group);
  add_source_options(app, source_);
  add_engine_options(app, engine_);
}

library::SalvageOptions Salvage::options() const {
  library::SalvageOptions options;
  options.from = source_.from;
  options.read = source_.read;
  if (partial_ == "zeros") options.fill = library::Fill::kZeros;
  if (partial_ == "nan") options.fill = library::Fill::kNan;
  options.like = like_;
  options.dry_run = dry_run_;
  options.save.threads = engine_.threads;
  options.save.max_mem = engine_.max_mem;
  options.save.overwrite = overwrite_;
  options.save.resume = resume_;
  options.save.sync = !no_fsync_;
  options.save.manifest = !no_manifest_;
  return options;
}

std::string Salvage::json(const library::Salvaged& result) const {
  JsonWriter json;
  json.begin_document("salvage");
  json.member("source", source_path_);
  json.member("target", target_path_);
  json.member("format", result.format);
  json.member("whole", result.whole());
  json.member("written", result.written);
  json.member("dry_run", dry_run_);
  json.text_or_null("partial", partial_);
  json.member("tensors", result.tensors);
  json.member("files", result.files);
  json.member("bytes", result.bytes);
  write_notes(json, "rebuilt", result.rebuilt);
  json.key("gone").begin_array();
  for (const library::GoneElements& gone : result.gone) {
    json.begin_object();
    json.member("tensor", gone.tensor);
    json.member("dtype", ckpt::name(gone.dtype));
    json.key("box").begin_object();
    write_dims(json, "offset", gone.box.offset);
    write_dims(json, "shape", gone.box.shape);
    json.end_object();
    json.key("elements").begin_array();
    json.value(gone.elements.begin).value(gone.elements.end);
    json.end_array();
    json.member("bytes", gone.bytes);
    json.member("file", gone.file);
    json.end_object();
  }
  json.end_array();
  write_notes(json, "lost", result.lost);
  write_notes(json, "warnings", result.warnings);
  json.end_object();
  return std::move(json).text();
}

std::string Salvage::text(const library::Salvaged& result) const {
  const auto line = [](const salvage::Note& note) {
    return text::printable(note.file.empty() ? note.what
                                             : note.file + ": " + note.what);
  };
  std::string text;
  for (const salvage::Note& note : result.rebuilt)
    text += (note.inferred ? "inferred: " : "rebuilt: ") + line(note) + "\n";
  for (const library::GoneElements& gone : result.gone)
    text += fmt::format(
        "gone: {}: {}: elements {}-{} of box {} at {}, {} bytes\n",
        text::printable(gone.file), text::printable(gone.tensor),
        gone.elements.begin, gone.elements.end, to_string(gone.box.shape),
        to_string(gone.box.offset), gone.bytes);
  for (const salvage::Note& note : result.lost)
    text += "lost: " + line(note) + "\n";
  for (const salvage::Note& note : result.warnings)
    text += "warning: " + line(note) + "\n";
  return text;
}

// Rebuilding reads much of a file more than once, so a server's comes here.
library::Salvaged Salvage::rebuild() {
  if (!io::is_url(source_path_))
    return library::salvage_checkpoint(source_path_, target_path_, options(),
                                       make_progress(output));
  // Minutes of fetching must not end at a target that can't be written.
  library::check_place(target_path_, {like_});
  io::Staging::check(target_path_, {.single_file = io::is_file(source_path_),
                                    .overwrite = overwrite_,
                                    .resume = resume_});
  fetched_.emplace(source_path_, target_path_, output);
  library::SalvageOptions how = options();
  how.source_name = source_path_;
  try {
    library::Salvaged result = library::salvage_checkpoint(
        fetched_->path(), target_path_, how, make_progress(output));
    for (auto* const notes : {&result.rebuilt, &result.lost, &result.warnings})
      for (salvage::Note& note : *notes) {
        note.file = fetched_->shown(note.file);
        note.what = fetched_->shown(note.what);
      }
    return result;
  } catch (const Error& error) {
    throw fetched_->named(error);
  }
}

ExitCode Salvage::run() {
  check_apart(source_path_, target_path_);
  check_same_ending(source_path_, target_path_);
  const auto begin = std::chrono::steady_clock::now();
  const library::Salvaged result = rebuild();
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  if (output.json)
    print(json(result));
  else
    print_folded(text(result));
  const bool refused = !result.whole() && partial_.empty();
  if (refused) {
    const Error error =
        unfaithful_error({source_path_, {}},
                         "{} of elements and {} are gone; nothing is written",
                         text::counted(result.gone.size(), "range"),
                         text::counted(result.lost.size(), "other thing"))
            .with_hint(
                "--like OTHER takes what another step proves; --partial zeros "
                "(or nan) writes what is left");
    throw fetched_ ? fetched_->named(error) : error;
  }
  if (fetched_ && result.written) fetched_->remove();
  if (fetched_ && !result.written && output.verbosity >= 0)
    say(
        fmt::format("note: the copy of the source stays in {}, where the next "
                    "run looks for it",
                    text::shell_path(fetched_->folder())));
  const std::string what = fmt::format("{}, {} in {}, {}", result.format,
                                       text::counted(result.tensors, "tensor"),
                                       text::counted(result.files, "file"),
                                       text::iec_size(result.bytes));
  const std::string whole = result.whole() ? "whole" : "not whole";
  if (dry_run_ && !output.json && output.verbosity >= 0)
    print_folded(fmt::format("{}: {}, {}\ndry run: nothing was written\n",
                             text::printable(target_path_), what, whole));
  if (result.written && output.verbosity >= 0 && !output.json) {
    const double seconds = std::max(took.count(), 1e-6);
    const double rate = static_cast<double>(result.bytes) / seconds;
    say(fmt::format(
        "wrote {}: {} in {:.{}f} s ({}/s), peak memory {}, {}; next: ckpt "
        "{} {}",
        text::printable(target_path_), what, seconds, seconds < 1 ? 2 : 1,
        text::iec_size(static_cast<uint64_t>(rate)),
        text::iec_size(peak_memory()), whole,
        result.whole() ? "verify" : "inspect", text::shell_path(target_path_)));
  }
  return result.whole() ? ExitCode::kDone : ExitCode::kNegative;
}

}  // namespace

std::unique_ptr<Command> make_salvage() { return std::make_unique<Salvage>(); }

}  // namespace ckpt::app
