// SPDX-License-Identifier: Apache-2.0
// Which files there are to copy, and how the bytes of one are read.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "api/fetch/fetch.h"
#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/io/ahead.h"
#include "lib/io/listing.h"
#include "lib/io/remote.h"
#include "lib/parallel.h"
#include "lib/session.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"
#include "lib/text/shell.h"

namespace ckpt::library {
namespace {

namespace fs = std::filesystem;
using text::printable;

constexpr uint64_t kFetchStep = uint64_t{8} << 20;
constexpr uint64_t kPart = uint64_t{4} << 20;  // per request
// In flight or waiting to be read, for all files together.
constexpr uint64_t kAhead = uint64_t{64} << 20;
constexpr size_t kLooks = 32;  // at once

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

// "" for a file. A link whose end can't be looked at is an error of its own.
std::string why_odd(const fs::directory_entry& entry) {
  std::error_code failed;
  switch (entry.status(failed).type()) {
    case fs::file_type::not_found:
      return entry.is_symlink(failed) ? "a link that leads nowhere" : "";
    case fs::file_type::fifo:
      return "a pipe";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    default:
      return failed == std::errc::too_many_symbolic_link_levels
                 ? "a link that leads nowhere"
                 : "";
  }
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

}  // namespace

void list_files(FetchJob& job, const std::string& url,
                const std::function<bool(const std::string& path)>& wanted) {
  std::vector<io::RemoteEntry> all;
  job.single = io::is_file(url);
  if (job.single) {
    all.push_back(
        {io::is_url(url) ? io::remote_name(url) : io::base_name(url), 0});
  } else if (io::is_directory(url)) {
    if (io::is_url(url)) {
      all = io::files_below(url);
    } else {
      FilesHere found = files_here(url);
      all = std::move(found.files);
      job.links = std::move(found.links);
      for (FetchOdd& one : found.odd)
        if (wanted(one.path)) job.odd.push_back(std::move(one));
    }
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

FilesHere files_here(const std::string& root) {
  constexpr size_t kMostFiles = 1'000'000;
  FilesHere found;
  std::error_code failed;
  fs::recursive_directory_iterator at(root, failed);
  for (const fs::recursive_directory_iterator end; !failed && at != end;
       at.increment(failed)) {
    if (io::is_lost_and_found(at->path().string()))
      at.disable_recursion_pending();
    std::error_code ignored;
    std::string path = at->path().lexically_relative(root).string();
    if (at->is_directory(ignored)) {
      if (at->is_symlink(ignored)) found.links.push_back(std::move(path));
    } else if (const std::string why = why_odd(*at); !why.empty()) {
      found.odd.push_back({std::move(path), why});
    } else {
      found.files.push_back({std::move(path), 0});
    }
    if (found.files.size() > kMostFiles)
      throw input_error({root, {}}, "more than {} files lie in it", kMostFiles);
  }
  if (failed) throw io_error(root, "cannot list it", failed.value());
  std::ranges::sort(found.files, {}, &io::RemoteEntry::path);
  return found;
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
    if (job.warn) job.warn(printable(problem.file) + " " + problem.message);
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
    buffer.resize(std::min<uint64_t>(kFetchStep, end - at));
    const uint64_t next = at + buffer.size();
    if (io::remote_of(from)) {
      const uint64_t share = kAhead / std::max<uint64_t>(1, job.copying);
      const uint64_t ahead =
          job.paced ? 0
                    : std::max(kFetchStep, (share - kFetchStep) & ~(kPart - 1));
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

}  // namespace ckpt::library
