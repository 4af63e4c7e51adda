// SPDX-License-Identifier: Apache-2.0
#include "lib/heap.h"

#include <atomic>

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

}  // namespace

const char* Full::what() const noexcept { return "the bound of the heap"; }

uint64_t live() {
  const int64_t bytes = all_live.load(std::memory_order_relaxed);
  return bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

Bound::Bound(uint64_t bytes) {
  bound = bytes < INT64_MAX ? static_cast<int64_t>(bytes) : INT64_MAX;
}
Bound::~Bound() { lift_bound(); }

void lift_bound() { bound = INT64_MAX; }

void took(size_t bytes) noexcept { add(static_cast<int64_t>(bytes)); }
void gave(size_t bytes) noexcept { add(-static_cast<int64_t>(bytes)); }

bool has_room(size_t bytes) noexcept {
  const int64_t most = bound.load(std::memory_order_relaxed);
  return most == INT64_MAX || all_live.load(std::memory_order_relaxed) +
                                      static_cast<int64_t>(bytes) <=
                                  most;
}

}  // namespace ckpt::heap
