// SPDX-License-Identifier: Apache-2.0
#include "lib/io/ahead.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "ckpt/error.h"
#include "lib/failures.h"
#include "lib/io/mount.h"
#include "lib/parallel.h"

namespace ckpt::io {

namespace {

// cachestat(2) came with Linux 6.5, after the headers of many systems; its
// number is the same on all of them.
constexpr long kCachestat = 451;
struct CacheRange {
  uint64_t offset = 0;
  uint64_t count = 0;
};
struct CacheFacts {
  uint64_t cached = 0;  // pages, like all of these
  uint64_t dirty = 0;
  uint64_t under_writeback = 0;
  uint64_t evicted = 0;
  uint64_t recently_evicted = 0;
};

// The fallback: whether the last byte can be read without waiting. The first
// one is often cached because what precedes it was read.
bool has_last_byte(const Handle& file, uint64_t end) {
  std::byte probe;
  iovec part{&probe, 1};
  return ::preadv2(file.fd(), &part, 1, static_cast<off_t>(end - 1),
                   RWF_NOWAIT) >= 0;
}

}  // namespace

bool is_cached(const Handle& file, uint64_t offset, uint64_t count) {
  if (count == 0) return true;
  if (const RemoteFile* remote = remote_of(file))
    return remote->has(file.base() + offset, count);
  CacheRange range{file.base() + offset, count};
  CacheFacts facts;
  if (::syscall(kCachestat, file.fd(), &range, &facts, 0) != 0)
    return has_last_byte(file, range.offset + count);
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGE_SIZE));
  return facts.cached * page > count / 2;
}

void ask_for(const Handle& file, uint64_t offset, uint64_t count) {
  const Range range{offset, offset + count};
  ask_for(file, {&range, 1}, {});
}

void ask_for(const Handle& file, std::span<const Range> ranges, Asking how) {
  const uint64_t base = file.base();
  if (const RemoteFile* remote = remote_of(file)) {
    std::vector<Range> there;
    there.reserve(ranges.size());
    for (const auto& [begin, end] : ranges)
      there.push_back({base + begin, base + end});
    return remote->ask_for(there, how);
  }
  for (const auto& [begin, end] : ranges)
    ::posix_fadvise(file.fd(), static_cast<off_t>(base + begin),
                    static_cast<off_t>(end - begin), POSIX_FADV_WILLNEED);
}

LooksAhead::LooksAhead(const Handle& file, std::vector<Range> places,
                       uint64_t window)
    : file_(file), places_(std::move(places)), window_(window) {
  if (!remote_of(file)) next_ = half_ = SIZE_MAX;
}

void LooksAhead::reach(size_t i) {
  constexpr size_t kMost = 1024;  // requests for places far apart
  if (i < half_ || next_ >= places_.size()) return;
  const size_t before = next_;
  std::vector<Range> ranges;
  for (uint64_t bytes = 0;
       next_ < places_.size() && bytes < window_ && ranges.size() < kMost;
       ++next_) {
    const Range& place = places_[next_];
    bytes += place.end - place.begin;
    if (next_ > before && place.begin >= places_[next_ - 1].end)
      bytes += std::min(place.begin - places_[next_ - 1].end, kGap);
    ranges.push_back(place);
  }
  half_ = (before + next_) / 2;
  std::ranges::sort(ranges, {}, &Range::begin);
  ask_for(file_, ranges, {.looks = true});
}

namespace {

// The file if it is on a server and small; else null. A listing tells; a web
// server is asked, and sends the first bytes along. It is not opened as what is
// read: whether it changes later matters to whoever reads it.
std::shared_ptr<const RemoteFile> small_file(const std::string& path) {
  constexpr uint64_t kSmall = uint64_t{64} << 10;
  if (!is_url(path) || find_mounted(path)) return nullptr;
  const failures::Unimportant whoever_reads_it_meets_it_again;
  try {
    auto file = open_remote(path).file;
    if (!file || file->size() == 0 || file->size() > kSmall) return nullptr;
    return file;
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

FilesAhead::FilesAhead(std::vector<std::string> paths)
    : paths_(std::move(paths)) {
  if (std::ranges::none_of(paths_, [](const auto& one) { return is_url(one); }))
    next_ = half_ = SIZE_MAX;
}

void FilesAhead::reach(size_t i) {
  constexpr size_t kFiles = 128;  // as many as requests to a store
  constexpr uint64_t kBytes = uint64_t{4} << 20;
  constexpr size_t kLooks = 32;  // at once
  const std::lock_guard lock(mutex_);
  if (i < half_ || next_ >= paths_.size()) return;
  const size_t before = std::max(next_, i);
  std::vector<std::shared_ptr<const RemoteFile>> files(
      std::min(kFiles, paths_.size() - before));
  parallel_for(
      files.size(),
      [&](size_t k) { files[k] = small_file(paths_[before + k]); }, kLooks);
  next_ = before;
  for (uint64_t bytes = 0; next_ < before + files.size() && bytes < kBytes;
       ++next_) {
    const auto& file = files[next_ - before];
    if (!file) continue;
    const Range all{0, file->size()};
    file->ask_for({&all, 1}, {.looks = true});
    bytes += file->size();
  }
  half_ = (before + next_) / 2;
}

}  // namespace ckpt::io
