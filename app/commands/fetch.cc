// SPDX-License-Identifier: Apache-2.0
// Copies all files below a URL, byte for byte, into a directory or below
// another URL.
#include "app/commands/fetch.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>

#include "api/places.h"
#include "app/command.h"
#include "app/options/options.h"
#include "app/options/rate.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/progress.h"
#include "lib/interrupt.h"
#include "lib/io/ahead.h"
#include "lib/io/listing.h"
#include "lib/io/remote.h"
#include "lib/io/upload.h"
#include "lib/parallel.h"
#include "lib/session.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;
using text::printable;

constexpr uint64_t kStep = 8 << 20;
constexpr uint64_t kPart = 4 << 20;  // per request
// In flight or waiting to be read, for all files together.
constexpr uint64_t kAhead = 64 << 20;
constexpr size_t kLooks = 32;  // at once

constexpr std::string_view kFetchExamples =
    "ckpt fetch hf://Qwen/Qwen3-0.6B model\n"
    "ckpt fetch s3://bucket/run/step_500 step_500\n"
    "ckpt fetch hf://ORG/NAME model --include '*.safetensors'\n"
    "ckpt fetch hf://Qwen/Qwen3-0.6B s3://bucket/qwen3";

// A server names files; none may be outside the directory.
void check_name(const std::string& url, const std::string& path) {
  const fs::path name(path);
  const bool plain = std::ranges::none_of(name, [](const fs::path& part) {
    return part == ".." || part == "." || part.empty();
  });
  if (!path.empty() && plain && !name.is_absolute() &&
      path.find('\0') == path.npos)
    return;
  throw unsafe_error({url, {}},
                     "names a file \"{}\", which is not a plain name",
                     printable(path));
}

// Of a file on this machine, what a change to it changes.
std::string tag_here(const struct stat& facts) {
  return fmt::format("{} {:x}-{:x}.{:x}-{:x}.{:x}", facts.st_size, facts.st_ino,
                     facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec,
                     facts.st_ctim.tv_sec, facts.st_ctim.tv_nsec);
}

void look_at(FetchFile& file) {
  struct stat facts;
  if (!io::stat_any(file.url, facts))
    throw missing_error({file.url, {}}, "is listed, and is not there")
        .with_hint(
            "the directory is changing, or it is a broken symlink; "
            "--exclude leaves it out");
  Session::current()->watch.opened(file.url, facts);
  file.bytes = static_cast<uint64_t>(facts.st_size);
  if (!io::is_url(file.url)) {
    if (!S_ISREG(facts.st_mode))
      throw unfaithful_error({file.url, {}}, "is not a regular file")
          .with_hint("--exclude leaves it out");
    file.tag = tag_here(facts);
    return;
  }
  io::RemoteFacts told = io::remote_facts(file.url);
  file.sha256 = std::move(told.sha256);
  file.versioned = told.versioned;
  file.ranges = told.ranges;
  file.tag = fmt::format("{} {:016x}", file.bytes, facts.st_ino);
}

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
  FetchJob job_;
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
  list_files(job_, url_, wanted(include_, exclude_));
  add_listed_sums(job_);
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
  there ? fetch_there(job_) : fetch_here(job_);
  job_.progress.end();
  report();
  return ExitCode::kDone;
}

}  // namespace

void list_files(FetchJob& job, const std::string& url,
                const std::function<bool(const std::string& path)>& wanted) {
  std::vector<io::RemoteEntry> all;
  job.single = io::is_file(url);
  if (job.single) {
    all.push_back(
        {io::is_url(url) ? io::remote_name(url) : io::base_name(url), 0});
  } else if (io::is_directory(url)) {
    all = io::is_url(url) ? io::files_below(url) : files_here(url, nullptr);
  } else {
    throw missing_error({url, {}}, "does not exist");
  }
  for (const io::RemoteEntry& one : all) {
    check_name(url, one.path);
    if (wanted(one.path))
      job.files.push_back(
          {one.path, job.single ? url : io::join(url, one.path)});
  }
  // A web server is asked about each file; other listings already say it.
  parallel_for(
      job.files.size(), [&](size_t i) { look_at(job.files[i]); }, kLooks);
  if (!job.files.empty()) return;
  if (all.empty()) throw missing_error({url, {}}, "lists no files");
  throw missing_error({url, {}}, "none of its {} is wanted",
                      text::counted(all.size(), "file"))
      .with_hint("--include and --exclude are globs; a name here: " +
                 text::printable(all.front().path));
}

std::function<bool(const std::string&)> wanted(
    const std::vector<std::string>& include,
    const std::vector<std::string>& exclude) {
  return [in = std::vector<text::Glob>(include.begin(), include.end()),
          out = std::vector<text::Glob>(exclude.begin(), exclude.end())](
             const std::string& path) {
    const auto matches = [&](const text::Glob& one) {
      return one.matches(path);
    };
    return (in.empty() || std::ranges::any_of(in, matches)) &&
           std::ranges::none_of(out, matches);
  };
}

std::vector<io::RemoteEntry> files_here(const std::string& root,
                                        std::vector<std::string>* links) {
  constexpr size_t kMostFiles = 1'000'000;
  std::vector<io::RemoteEntry> files;
  std::error_code failed;
  fs::recursive_directory_iterator at(root, failed);
  for (const fs::recursive_directory_iterator end; !failed && at != end;
       at.increment(failed)) {
    if (io::is_lost_and_found(at->path().string()))
      at.disable_recursion_pending();
    std::error_code ignored;
    const std::string path = at->path().lexically_relative(root).string();
    if (!at->is_directory(ignored))
      files.push_back({path, 0});
    else if (links && at->is_symlink(ignored))
      links->push_back(path);
    if (files.size() > kMostFiles)
      throw input_error({root, {}}, "more than {} files lie in it", kMostFiles);
  }
  if (failed) throw io_error(root, "cannot list it", failed.value());
  std::ranges::sort(files, {}, &io::RemoteEntry::path);
  return files;
}

bool same_bytes(FetchJob& job, const FetchFile& file, const std::string& path) {
  struct Differs {};
  const io::Handle other = io::Handle::open_read(path);
  std::vector<std::byte> own;
  try {
    fetch_bytes(job, open_fetched(file), 0, file.bytes, file.bytes,
                [&](uint64_t at, std::span<const std::byte> bytes) {
                  own.resize(bytes.size());
                  other.read(at, own);
                  if (!std::ranges::equal(own, bytes)) throw Differs{};
                });
  } catch (const Differs&) {
    return false;
  }
  return true;
}

void add_listed_sums(FetchJob& job) {
  std::vector<std::string> urls;
  std::map<std::string, FetchFile*> by_url;
  for (FetchFile& file : job.files) {
    urls.push_back(file.url);
    by_url[file.url] = &file;
  }
  const sums::Beside found = sums::listed(urls);
  for (const sums::Sum& sum : found.sums)
    by_url.at(sum.file)->sums.push_back(sum);
  for (const Problem& problem : found.problems)
    say("warning: " + printable(problem.file) + " " + problem.message);
}

io::Handle open_fetched(const FetchFile& file) {
  io::Handle from = io::Handle::open_read(file.url);
  if (from.size() != file.bytes)
    throw input_error({file.url, {}}, "has {} bytes, the list says {}",
                      from.size(), file.bytes);
  return from;
}

bool is_index(const FetchFile& file) {
  const std::string name = io::base_name(file.path);
  return name.ends_with("index.json") || name == ".metadata" ||
         name == "common.pt" || name == "config.json" ||
         name == "hf_config.json";
}

void fetch_bytes(FetchJob& job, const io::Handle& from, uint64_t begin,
                 uint64_t end, uint64_t last, const TakeBytes& take) {
  std::vector<std::byte> buffer;
  for (uint64_t at = begin; at < end; at += buffer.size()) {
    if (interrupted()) throw Interrupted("");
    buffer.resize(std::min<uint64_t>(kStep, end - at));
    const uint64_t next = at + buffer.size();
    if (io::remote_of(from)) {
      const uint64_t share = kAhead / std::max<uint64_t>(1, job.copying);
      const uint64_t ahead =
          max_rate() != 0 ? 0 : std::max(kStep, (share - kStep) & ~(kPart - 1));
      io::ask_for(from, at, buffer.size());
      io::ask_for(from, next, std::min(ahead, last - next));
    }
    from.read(at, buffer);
    take(at, buffer);
    job.fetched += buffer.size();
    job.progress.advance(buffer.size());
  }
}

void check_sum(FetchJob& job, const FetchFile& file, const std::string& sum) {
  if (sum != file.sha256)
    throw input_error({file.url, {}},
                      "what came has the sha256 {}, the hub promises {}", sum,
                      file.sha256)
        .with_hint("fetch it again: it is fetched anew");
  ++job.checked;
}

void check_listed(FetchJob& job, const FetchFile& file, const sums::Sum& sum,
                  const std::string& hex) {
  if (hex != sum.hex)
    throw input_error({file.url, {}}, "what came has {} {}, and by {} it is {}",
                      sums::name(sum.algorithm), hex, sum.source, sum.hex)
        .with_hint(fmt::format("fetch it again: it is fetched anew; if that "
                               "stays so, --exclude {} fetches without it",
                               text::shell_path("*" + sum.source)));
  ++job.listed;
}

std::unique_ptr<Command> make_fetch() { return std::make_unique<Fetch>(); }

}  // namespace ckpt::app
