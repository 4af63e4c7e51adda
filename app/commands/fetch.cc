// SPDX-License-Identifier: Apache-2.0
// Copies all files below a URL, byte for byte, into a directory or below
// another URL.
#include "api/fetch/fetch.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "api/places.h"
#include "app/command.h"
#include "app/options/options.h"
#include "app/options/rate.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/progress.h"
#include "lib/interrupt.h"
#include "lib/io/remote.h"
#include "lib/io/upload.h"
#include "lib/session.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

using library::FetchFile;
using text::printable;

constexpr std::string_view kFetchExamples =
    "ckpt fetch hf://Qwen/Qwen3-0.6B model\n"
    "ckpt fetch s3://bucket/run/step_500 step_500\n"
    "ckpt fetch hf://ORG/NAME model --include '*.safetensors'\n"
    "ckpt fetch hf://Qwen/Qwen3-0.6B s3://bucket/qwen3";

class Fetch : public Command {
 public:
  std::string_view name() const override { return "fetch"; }
  std::string_view help() const override {
    return "copy the files below a URL, as they are; resumes where it stopped";
  }
  std::string_view examples() const override { return kFetchExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  void list();
  void check_directory() const;
  void report() const;

  std::string url_;
  std::vector<std::string> include_;
  std::vector<std::string> exclude_;
  library::FetchJob job_;
};

void Fetch::add_options(CLI::App& app) {
  app.add_option("URL", url_, "https://, hf://, s3://, gs:// or az://")
      ->required()
      ->group("Arguments");
  app.add_option("DIR", job_.target,
                 "Where the files go: a directory, s3:// or gs://")
      ->required()
      ->group("Arguments");
  app.add_option("--include", include_, "Only files that match one of these")
      ->type_name("GLOB")
      ->group("What to fetch");
  app.add_option("--exclude", exclude_, "No files that match one of these")
      ->type_name("GLOB")
      ->group("What to fetch");
  app.add_flag("--verify", job_.verify,
               "Read the files once more from the disk, by the hub's sha256")
      ->group("How");
  app.add_flag("--overwrite", job_.overwrite,
               "Replace files in DIR that differ, once the new ones are whole")
      ->group("How");
  app.add_flag_callback(
         "--no-fsync", [&] { job_.sync = false; }, "Don't wait for the disk")
      ->group("How");
  add_rate_option(app);
}

void Fetch::list() {
  job_.paced = max_rate() != 0;
  job_.warn = [](const std::string& text) { say("warning: " + text); };
  library::list_files(job_, url_, library::wanted(include_, exclude_));
  library::add_listed_sums(job_);
}

// It would be a directory named like the file, with the file in it.
void Fetch::check_directory() const {
  if (!job_.single || job_.target.ends_with('/') ||
      io::is_directory(job_.target))
    return;
  const std::string name = job_.files[0].path;
  const size_t dot = name.rfind('.');
  if (dot == name.npos || dot == 0 || !job_.target.ends_with(name.substr(dot)))
    return;
  throw usage_error({job_.target, {}},
                    "DIR is a directory, and this is named like the file")
      .with_hint(fmt::format("ckpt fetch {} . puts {} here; a trailing slash "
                             "makes any name a directory",
                             text::shell_path(url_), text::printable(name)));
}

void Fetch::report() const {
  uint64_t bytes = 0;
  for (const FetchFile& file : job_.files) bytes += file.bytes;
  const io::RemoteTraffic traffic = io::remote_traffic();
  if (output.json) {
    JsonWriter json;
    json.begin_document("fetch").member("source", url_);
    json.member("target", job_.target);
    json.member("bytes", bytes).member("bytes_fetched", job_.fetched.load());
    json.member("requests", traffic.requests);
    json.member("bytes_on_wire", traffic.bytes + traffic.sent);
    json.key("files").begin_array();
    for (const FetchFile& file : job_.files) {
      json.begin_object().member("path", file.path);
      json.member("bytes", file.bytes);
      json.text_or_null("sha256", file.sha256);
      json.end_object();
    }
    json.end_array().end_object();
    return print(std::move(json).text());
  }
  std::string proof;
  if (job_.checked)
    proof += fmt::format("; {} of them had the sha256 that the hub promises",
                         job_.checked.load());
  if (job_.listed)
    proof += fmt::format("; {} had the checksum of a list beside it",
                         text::counted(job_.listed, "file"));
  print_folded(fmt::format("{}, {}, of which {} fetched ({}){}\n",
                           text::counted(job_.files.size(), "file"),
                           text::iec_size(bytes),
                           text::iec_size(job_.fetched.load()),
                           text::counted(traffic.requests, "request"), proof));
}

ExitCode Fetch::run() {
  if (!io::is_url(url_))
    throw usage_error({url_, {}}, "is not a URL")
        .with_hint("what is on this machine: cp -r");
  const bool there = io::is_url(job_.target);
  if (there && !io::is_target_url(job_.target))
    throw usage_error({job_.target, {}}, "can be read, not written")
        .with_hint("targets are directories, s3:// and gs://");
  library::check_target_place(job_.target);
  if (there && job_.verify)
    throw usage_error({}, "--verify reads files of this machine")
        .with_hint("what is sent is compared with the server's checksums");
  Session::current()->watch.begin();
  list();
  if (!there) check_directory();
  if (there && job_.single) {
    // Like cp: into a directory under its own name, otherwise under the given
    // one.
    if (job_.target.ends_with('/')) job_.target += job_.files[0].path;
    job_.files[0].path = io::base_name(job_.target);
  }
  const InterruptScope scope;
  uint64_t bytes = 0;
  for (const FetchFile& file : job_.files) bytes += file.bytes;
  job_.progress = make_progress(output);
  job_.progress.begin("fetching", bytes);
  there ? library::fetch_there(job_) : library::fetch_here(job_);
  job_.progress.end();
  report();
  return ExitCode::kDone;
}

}  // namespace

std::unique_ptr<Command> make_fetch() { return std::make_unique<Fetch>(); }

}  // namespace ckpt::app
