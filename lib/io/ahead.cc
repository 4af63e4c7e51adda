// SPDX-License-Identifier: Apache-2.0
#include "lib/io/ahead.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

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

}  // namespace ckpt::io
