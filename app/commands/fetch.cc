// SPDX-License-Identifier: Apache-2.0
// All files below a URL, byte by byte, into a directory. What is there from a
// run that was stopped is gone on with:
//
//   DIR/.ckpt-fetch/NAME.part   the first bytes of a file, as many as it has
//   DIR/.ckpt-fetch/NAME.tag    of which version: "SIZE HASH", and "done" when
//                               the file is in its place
//   DIR/NAME                    when it is whole, and its sha256 is the one
//                               that the hub promises
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <filesystem>

#include "app/commands/command.h"
#include "app/options/options.h"
#include "app/options/rate.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/progress.h"
#include "lib/interrupt.h"
#include "lib/io/ahead.h"
#include "lib/io/file.h"
#include "lib/io/lock.h"
#include "lib/io/remote.h"
#include "lib/io/rename.h"
#include "lib/parallel.h"
#include "lib/sha256.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;
using text::printable;

constexpr uint64_t kStep = 8 << 20;
constexpr uint64_t kPart = 4 << 20;  // that one request asks for
constexpr size_t kThreads = 4;
// Under way or waiting to be read, of all files together.
constexpr uint64_t kAhead = 64 << 20;

constexpr std::string_view kExamples =
    "ckpt fetch hf://Qwen/Qwen3-0.6B model\n"
    "ckpt fetch s3://bucket/run/step_500 step_500\n"
    "ckpt fetch hf://ORG/NAME model --include '*.safetensors'";

// A server names files; none may lie outside of the directory.
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

class Fetch : public Command {
 public:
  std::string_view name() const override { return "fetch"; }
  std::string_view help() const override {
    return "copy the files below a URL, as they are; goes on where it stopped";
  }
  std::string_view examples() const override { return kExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  struct File {
    std::string path;
    uint64_t bytes = 0;
    std::string sha256;
    std::string tag;
  };

  void list();
  void fetch(const File& file, const Progress& progress);
  void copy(const File& file, const std::string& part,
            const Progress& progress);
  bool is_whole(const File& file) const;
  void place(const File& file, const std::string& part);
  void report() const;

  std::string url_of(const File& file) const {
    return single_ ? url_ : io::join(url_, file.path);
  }
  // In the folder for what is not finished, without folders below it.
  std::string kept(const File& file, std::string_view ending) const {
    std::string flat;
    for (const char c : file.path)
      flat += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
    return io::join(folder_, flat + std::string(ending));
  }

  std::string url_;
  std::string target_;
  std::string folder_;  // DIR/.ckpt-fetch
  std::vector<std::string> include_;
  std::vector<std::string> exclude_;
  bool single_ = false;
  std::vector<File> files_;
  std::atomic<uint64_t> copying_ = 0;  // files at a time
  std::atomic<uint64_t> fetched_ = 0;
  std::atomic<uint64_t> checked_ = 0;
};

void Fetch::add_options(CLI::App& app) {
  app.add_option("URL", url_, "https://, hf://, s3:// or gs://")
      ->required()
      ->group("Arguments");
  app.add_option("DIR", target_, "Where the files go")
      ->required()
      ->group("Arguments");
  app.add_option("--include", include_, "Only files that match one of these")
      ->type_name("GLOB")
      ->group("What to fetch");
  app.add_option("--exclude", exclude_, "No files that match one of these")
      ->type_name("GLOB")
      ->group("What to fetch");
  add_rate_option(app);
}

void Fetch::list() {
  std::vector<text::Glob> include(include_.begin(), include_.end());
  std::vector<text::Glob> exclude(exclude_.begin(), exclude_.end());
  const auto any = [](const std::vector<text::Glob>& globs,
                      const std::string& path) {
    return std::ranges::any_of(
        globs, [&](const text::Glob& one) { return one.matches(path); });
  };
  std::vector<io::RemoteEntry> all;
  single_ = io::is_file(url_);
  if (single_) {
    all.push_back({io::base_name(url_), 0});
  } else if (io::is_directory(url_)) {
    all = io::files_below(url_);
  } else {
    throw missing_error({url_, {}}, "does not exist");
  }
  for (const io::RemoteEntry& one : all) {
    check_name(url_, one.path);
    if (!include.empty() && !any(include, one.path)) continue;
    if (any(exclude, one.path)) continue;
    File file{one.path, 0, {}, {}};
    struct stat facts;
    if (!io::stat_any(url_of(file), facts))
      throw missing_error({url_of(file), {}}, "does not exist any more");
    file.bytes = static_cast<uint64_t>(facts.st_size);
    file.sha256 = io::remote_sha256(url_of(file));
    file.tag = fmt::format("{} {:016x}", file.bytes, facts.st_ino);
    files_.push_back(std::move(file));
  }
  if (files_.empty())
    throw missing_error({url_, {}}, "no file of it is wanted");
}

std::string read_tag(const std::string& path) {
  constexpr uint64_t kMost = 4096;
  return io::is_file(path) ? io::read_file(path, kMost) : "";
}

void write_tag(const std::string& path, const std::string& tag) {
  std::error_code ignored;
  fs::remove(path, ignored);
  const io::Handle file = io::Handle::create(path);
  file.write(0, std::string_view(tag));
  file.sync();
}

// The file is there, and is the one that is meant.
bool Fetch::is_whole(const File& file) const {
  const std::string path = io::join(target_, file.path);
  const auto size = io::file_size(path);
  if (!size) return false;
  if (*size == file.bytes && read_tag(kept(file, ".tag")) == "done " + file.tag)
    return true;
  const auto exists = unfaithful_error({path, {}}, "already exists");
  if (*size != file.bytes || file.sha256.empty())
    throw exists.with_hint("fetch into another directory, or remove it");
  Sha256 sum;
  std::vector<std::byte> buffer(kStep);
  const io::Handle there = io::Handle::open_read(path);
  for (uint64_t at = 0; at < *size; at += buffer.size()) {
    buffer.resize(std::min<uint64_t>(kStep, *size - at));
    there.read(at, buffer);
    sum.update(buffer);
  }
  if (sum.hex() != file.sha256)
    throw exists.with_hint(
        "it differs from the one that would be fetched: fetch into another "
        "directory, or remove it");
  return true;
}

void Fetch::place(const File& file, const std::string& part) {
  const std::string path = io::join(target_, file.path);
  std::error_code failed;
  fs::create_directories(io::parent(path), failed);
  if (failed)
    throw io_error(io::parent(path), "cannot make it", failed.value());
  fs::rename(part, path, failed);
  if (failed) throw io_error(path, "cannot rename to it", failed.value());
  io::sync_directory(io::parent(path));
  write_tag(kept(file, ".tag"), "done " + file.tag);
}

// From where an earlier run stopped; the sum is over all of it.
void Fetch::copy(const File& file, const std::string& part,
                 const Progress& progress) {
  Sha256 sum;
  std::vector<std::byte> buffer;
  const io::Handle to = io::Handle::open_write(part);
  const uint64_t begin = std::min(to.size(), file.bytes);
  const io::Handle from = io::Handle::open_read(url_of(file));
  if (from.size() != file.bytes)
    throw input_error({url_of(file), {}}, "has {} bytes, the list says {}",
                      from.size(), file.bytes);
  for (uint64_t at = 0; at < file.bytes; at += buffer.size()) {
    if (interrupted()) throw Interrupted("");
    const bool again = at < begin;
    buffer.resize(std::min<uint64_t>(kStep, (again ? begin : file.bytes) - at));
    if (again) {
      to.read(at, buffer);
    } else {
      const uint64_t next = at + buffer.size();
      if (io::remote_of(from)) {
        const uint64_t share = kAhead / std::max<uint64_t>(1, copying_);
        const uint64_t ahead =
            max_rate() != 0 ? 0
                            : std::max(kStep, (share - kStep) & ~(kPart - 1));
        io::ask_for(from, at, buffer.size());
        io::ask_for(from, next, std::min(ahead, file.bytes - next));
      }
      from.read(at, buffer);
      to.write(at, buffer);
      fetched_ += buffer.size();
    }
    if (!file.sha256.empty()) sum.update(buffer);
    progress.advance(buffer.size());
  }
  to.sync();
  if (file.sha256.empty()) return;
  const std::string got = sum.hex();
  if (got == file.sha256) {
    ++checked_;
    return;
  }
  std::error_code ignored;
  fs::remove(part, ignored);
  throw input_error({url_of(file), {}},
                    "what came has the sha256 {}, the hub promises {}", got,
                    file.sha256)
      .with_hint("fetch it again: it is fetched anew");
}

void Fetch::fetch(const File& file, const Progress& progress) {
  if (is_whole(file)) return progress.advance(file.bytes);
  const std::string part = kept(file, ".part");
  const std::string tag = kept(file, ".tag");
  std::error_code ignored;
  if (read_tag(tag) != file.tag) {
    fs::remove(part, ignored);
    write_tag(tag, file.tag);
  }
  if (!io::is_file(part)) io::Handle::create(part);
  ++copying_;
  copy(file, part, progress);
  --copying_;
  place(file, part);
}

void Fetch::report() const {
  uint64_t bytes = 0;
  for (const File& file : files_) bytes += file.bytes;
  const io::RemoteTraffic traffic = io::remote_traffic();
  if (output.json) {
    JsonWriter json;
    json.begin_document("fetch").member("source", url_);
    json.member("target", target_);
    json.member("bytes", bytes).member("bytes_fetched", fetched_.load());
    json.member("requests", traffic.requests);
    json.member("bytes_on_wire", traffic.bytes);
    json.key("files").begin_array();
    for (const File& file : files_) {
      json.begin_object().member("path", file.path);
      json.member("bytes", file.bytes);
      json.text_or_null("sha256", file.sha256);
      json.end_object();
    }
    json.end_array().end_object();
    return print(std::move(json).text());
  }
  const std::string proof =
      checked_
          ? fmt::format("; {} of them had the sha256 that the hub promises",
                        checked_.load())
          : "";
  print(fmt::format("{}, {}, of which {} fetched ({}){}\n",
                    text::counted(files_.size(), "file"), text::iec_size(bytes),
                    text::iec_size(fetched_.load()),
                    text::counted(traffic.requests, "request"), proof));
}

ExitCode Fetch::run() {
  if (!io::is_url(url_))
    throw usage_error({url_, {}}, "is not a URL")
        .with_hint("what is on this machine: cp -r");
  if (io::is_url(target_))
    throw usage_error({target_, {}}, "a target is written on this machine");
  list();
  const InterruptScope scope;
  folder_ = io::join(target_, ".ckpt-fetch");
  std::error_code failed;
  fs::create_directories(folder_, failed);
  if (failed) throw io_error(folder_, "cannot make it", failed.value());
  const io::TargetLock lock(target_);
  uint64_t bytes = 0;
  for (const File& file : files_) bytes += file.bytes;
  const Progress progress = make_progress(output);
  progress.begin("fetching", bytes);
  try {
    parallel_for(
        files_.size(), [&](size_t i) { fetch(files_[i], progress); }, kThreads);
  } catch (const Interrupted&) {
    throw Interrupted("stopped; what came is kept in " + folder_ +
                      ": run it again to go on");
  }
  progress.end();
  fs::remove_all(folder_, failed);
  report();
  return ExitCode::kDone;
}

}  // namespace

std::unique_ptr<Command> make_fetch() { return std::make_unique<Fetch>(); }

}  // namespace ckpt::app
