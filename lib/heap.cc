// SPDX-License-Identifier: Apache-2.0
#include "lib/heap.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <charconv>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace ckpt::heap {
namespace {

constexpr int64_t kFlushed = 16 << 10;

std::atomic<int64_t> all_live = 0;
std::atomic<int64_t> bound = INT64_MAX;
thread_local int64_t own_live = 0;  // not in all_live yet

void add(int64_t bytes) noexcept {
  own_live += bytes;
  if (own_live < kFlushed && own_live > -kFlushed) return;
  all_live.fetch_add(own_live, std::memory_order_relaxed);
  own_live = 0;
}

// Looking is a system call: for large blocks, and one of some others.
constexpr size_t kLarge = 256 << 10;
constexpr uint32_t kSkipped = 16;

// What is resident besides live blocks: the program's own data, stacks, free
// space between blocks. So the count of live blocks is what decides, and
// refusals don't depend on a page more or less.
constexpr int64_t kLoose = 12 << 20;

// Small blocks may pass the bound by this: a list that grows among them is held
// to the bound itself, and loses nothing that it has.
constexpr int64_t kUnseen = 1 << 20;
constexpr uint32_t kSmallSkipped = 4096;  // some 100 KiB of them

std::atomic<uint32_t> looked = 0;
thread_local uint32_t small_looked = 0;
std::atomic<int> unbounded = 0;
thread_local bool exempt = false;

struct Resident {
  int64_t all = 0;
  int64_t of_files = 0;
};

// In bytes; zeros where the system does not tell.
Resident resident() noexcept {
  static const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  char text[128];
  const ssize_t size = file < 0 ? -1 : ::pread(file, text, sizeof(text), 0);
  if (size <= 0) return {};
  int64_t numbers[3] = {};  // pages: of all addresses, resident, of files
  const char* at = text;
  for (int64_t& number : numbers) {
    const auto [end, failure] = std::from_chars(at, text + size, number);
    if (failure != std::errc{} || end == text + size) return {};
    at = end + 1;
  }
  return {numbers[1] * page, numbers[2] * page};
}

// Nobody counts where operator new is not replaced: there the resident set may
// be anybody's.
bool counts() noexcept {
  return all_live.load(std::memory_order_relaxed) != 0 || own_live != 0;
}

// Below this the bound was asked for.
constexpr uint64_t kTight = uint64_t{1} << 30;

// glibc takes the blocks of a size from the heap once one of that size was
// freed: what is freed among others then stays in the process, and a block that
// grows is copied.
void free_large_blocks_at_once() {
#ifdef __GLIBC__
  constexpr int kFromSystem = 1 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kFromSystem);
  ::mallopt(M_TRIM_THRESHOLD, kFromSystem);
#endif
}

}  // namespace

const char* Full::what() const noexcept { return "the bound of the heap"; }

Bound::Bound(uint64_t bytes) {
  if (bytes < kTight) free_large_blocks_at_once();
  bound = bytes < INT64_MAX ? static_cast<int64_t>(bytes) : INT64_MAX;
}
Bound::~Bound() { lift_bound(); }

void lift_bound() { bound = INT64_MAX; }

Unbounded::Unbounded() { ++unbounded; }
Unbounded::~Unbounded() { --unbounded; }

uint64_t process_bytes() { return static_cast<uint64_t>(resident().all); }

void give_back() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

void took(size_t bytes) noexcept { add(static_cast<int64_t>(bytes)); }
void gave(size_t bytes) noexcept { add(-static_cast<int64_t>(bytes)); }

void exempt_this_thread() noexcept { exempt = true; }

bool has_room(size_t bytes) noexcept { return exempt || fits(bytes); }

bool fits(size_t bytes) noexcept {
  const int64_t most = bound.load(std::memory_order_relaxed);
  if (most == INT64_MAX || unbounded.load(std::memory_order_relaxed) > 0)
    return true;
  if (!counts()) return true;
  const auto more = static_cast<int64_t>(bytes);
  const int64_t live_now = all_live.load(std::memory_order_relaxed);
  if (bytes != 0 && bytes < kLeast) {
    if (live_now > most + kUnseen) return false;
    if (++small_looked % kSmallSkipped != 0) return true;
    const Resident now = resident();
    return now.all - now.of_files <= most + kLoose + kUnseen;
  }
  if (live_now + more > most) return false;
  if (bytes < kLarge &&
      looked.fetch_add(1, std::memory_order_relaxed) % kSkipped != 0)
    return true;
  const Resident now = resident();
  return now.all - now.of_files + more <= most + kLoose;
}

}  // namespace ckpt::heap
