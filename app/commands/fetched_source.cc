// SPDX-License-Identifier: Apache-2.0
#include "app/commands/fetched_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "app/commands/fetch.h"
#include "app/print/progress.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/staging.h"
#include "lib/session.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostList = uint64_t{1} << 30;

// What the server has, and what lies here of it. Empty if those can't be of the
// same version for certain.
std::string list_of_copy(const FetchJob& job) {
  std::string text;
  for (const FetchFile& file : job.files) {
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

}  // namespace

FetchedSource::FetchedSource(std::string url, const std::string& target,
                             const OutputOptions& output)
    : url_(std::move(url)) {
  const std::string place = io::staging_place(target);
  folder_ =
      io::join(io::parent(place), "." + io::base_name(place) + ".ckpt-source");
  const std::string list = folder_ + ".list";
  // Always on the disk before the list says so: a later run takes the copy for
  // the source, if its bytes are still those.
  FetchJob job;
  job.target = folder_;
  // Only while it is fetched: what comes is held to the version of this look.
  const Session::Own session;
  Session::current()->watch.begin();
  list_files(job, url_, [](const std::string&) { return true; });
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
  for (const FetchFile& file : job.files) bytes += file.bytes;
  job.progress = make_progress(output);
  job.progress.begin("fetching", bytes);
  fetch_here(job);
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

}  // namespace ckpt::app
