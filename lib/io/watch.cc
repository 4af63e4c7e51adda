// SPDX-License-Identifier: Apache-2.0
#include "lib/io/watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lib/failures.h"
#include "lib/io/remote.h"
#include "lib/io/retry.h"
#include "lib/parallel.h"

namespace ckpt::io {
namespace {

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

Error source_changed(const std::string& path, const std::string& what) {
  return Error(ExitCode::kIo, {path, {}},
               "the source changed during the run: it " + what,
               "what was read of it may be a mixture, so nothing is written; "
               "wait until nobody writes to the source, then run it again");
}

// By opening it: a network file system asks its server then, where a look at
// the name alone may be answered from memory. Throws what a server fails with.
std::pair<struct stat, int> look_again(const std::string& path) {
  struct stat facts = {};
  if (is_url(path)) {
    const auto there = stat_remote_again(path);
    return {there.value_or(facts), there ? 0 : ENOENT};
  }
  const int fd = retry([&] {
    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  });
  if (fd < 0) return {facts, errno};
  const int why = ::fstat(fd, &facts) == 0 ? 0 : errno;
  ::close(fd);
  return {facts, why};
}

// Each reply said which version it is of: a server that is down by now says
// nothing about them.
std::pair<struct stat, int> look_if_told(const std::string& path) {
  const failures::Unimportant again;
  try {
    return look_again(path);
  } catch (const Error&) {
    return {{}, EIO};
  }
}

// The file, what is below the directory, and what stands beside it to tell
// about it.
bool is_of(const std::string& target, const std::string& path) {
  if (!path.starts_with(target)) return false;
  const std::string_view rest = std::string_view(path).substr(target.size());
  return rest.empty() || rest.starts_with('/') || rest.starts_with(".ckpt-");
}

}  // namespace

Watch::Facts Watch::facts_of(const struct stat& facts) {
  return {facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtim,
          facts.st_ctim};
}

// What differs; "" if nothing does.
std::string Watch::difference(const Facts& then, const Facts& now) {
  if (then.device != now.device || then.inode != now.inode)
    return "is another file now";
  if (then.size != now.size)
    return fmt::format("had {} bytes, now {}", then.size, now.size);
  if (!same_time(then.modified, now.modified)) return "was written to";
  if (!same_time(then.changed, now.changed))
    return "was changed (its ctime differs)";
  return {};
}

bool Watch::is_ignored(const std::string& path) const {
  return path.starts_with("/proc/") ||
         std::ranges::any_of(ignored_, [&](const std::string& target) {
           return is_of(target, path);
         });
}

void Watch::end() {
  const std::lock_guard lock(mutex_);
  on_ = false;
  files_.clear();
  ignored_.clear();
}

void Watch::ignore_below(const std::string& directory) {
  std::string target = directory;
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  const std::lock_guard lock(mutex_);
  // What is to be replaced was looked at before.
  std::erase_if(files_,
                [&](const auto& file) { return is_of(target, file.first); });
  ignored_.push_back(std::move(target));
}

void Watch::opened(const std::string& path, const struct stat& facts) {
  if (!on_.load(std::memory_order_relaxed)) return;
  std::string what;
  {
    const std::lock_guard lock(mutex_);
    if (is_ignored(path)) return;
    const auto [known, fresh] = files_.try_emplace(path, facts_of(facts));
    if (!fresh) what = difference(known->second, facts_of(facts));
  }
  if (!what.empty()) throw source_changed(path, what);
}

void Watch::add(const std::vector<std::string>& paths) {
  constexpr size_t kThreads = 16;
  parallel_for(
      paths.size(),
      [&](size_t i) {
        {
          const std::lock_guard lock(mutex_);
          if (files_.contains(paths[i])) return;
        }
        // What is read of a URL is held to the version of its first look.
        if (is_url(paths[i])) {
          const auto facts = stat_remote(paths[i]);
          if (facts) opened(paths[i], *facts);
          return;
        }
        const auto [facts, why] = look_again(paths[i]);
        if (why == 0) opened(paths[i], facts);
      },
      kThreads);
}

template <class Look>
std::optional<Error> Watch::find_change_by(const Look& look_at, bool here) {
  constexpr size_t kThreads = 64;  // that wait for a server, most of them
  std::vector<std::pair<std::string, Facts>> files;
  {
    const std::lock_guard lock(mutex_);
    files.assign(files_.begin(), files_.end());
  }
  if (here)
    std::erase_if(files, [](const auto& file) { return is_url(file.first); });
  std::ranges::sort(files, {}, [](const auto& file) { return file.first; });
  std::vector<std::string> urls;
  for (const auto& [path, then] : files)
    if (is_url(path)) urls.push_back(path);
  const auto told = stat_remote_again(urls);
  std::vector<std::string> found(files.size());
  parallel_for(
      files.size(),
      [&](size_t i) {
        const auto& [path, then] = files[i];
        const auto listed = told.find(path);
        const auto [facts, why] =
            listed == told.end() ? look_at(path) : std::pair(listed->second, 0);
        if (why == ENOENT) found[i] = "is gone";
        if (why == 0) found[i] = difference(then, facts_of(facts));
      },
      kThreads);
  for (size_t i = 0; i < files.size(); ++i)
    if (!found[i].empty()) return source_changed(files[i].first, found[i]);
  return std::nullopt;
}

std::optional<Error> Watch::find_change() {
  return find_change_by(look_if_told);
}

std::optional<Error> Watch::find_change_here() {
  return find_change_by(look_if_told, true);
}

void Watch::check_unchanged() {
  if (const auto change = find_change_by(look_again)) throw *change;
}

}  // namespace ckpt::io
