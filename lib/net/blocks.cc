// SPDX-License-Identifier: Apache-2.0
#include "lib/net/blocks.h"

#include <algorithm>
#include <chrono>
#include <deque>

namespace ckpt::net {
namespace {

// Headers and directories of many files; a model's own are some MiB.
constexpr uint64_t kMostKept = uint64_t{32} << 20;
// What was not asked for within this time will not be read.
constexpr auto kForgotten = std::chrono::seconds(60);
// Of payload, until somebody says how much there is.
constexpr uint64_t kUsualLimit = uint64_t{64} << 20;

// New memory costs as much as what is copied into it, since the kernel zeroes
// each page. So a few blocks of payload's size are used again.
constexpr uint64_t kLeastSpare = uint64_t{1} << 20;
constexpr uint64_t kSpareShare = 8;  // of what payload may take

class Spare {
 public:
  static Spare& get() {
    static Spare* const all = new Spare;
    return *all;
  }
  std::unique_ptr<std::byte[]> take(uint64_t size) {
    if (size >= kLeastSpare) {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find(free_, size, &Free::size);
      if (found != free_.end()) {
        auto memory = std::move(found->memory);
        free_.erase(found);
        held_ -= size;
        return memory;
      }
    }
    return std::make_unique_for_overwrite<std::byte[]>(size);
  }
  void give(std::unique_ptr<std::byte[]> memory, uint64_t size) {
    if (size < kLeastSpare) return;
    const std::lock_guard lock(mutex_);
    if (size > most_) return;
    free_.push_back({size, std::move(memory)});
    held_ += size;
    drop_some();
  }
  void set_most(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    most_ = bytes;
    drop_some();
  }

 private:
  struct Free {
    uint64_t size;
    std::unique_ptr<std::byte[]> memory;
  };
  // Sizes that nobody asks for come to the front.
  void drop_some() {
    while (held_ > most_) {
      held_ -= free_.front().size;
      free_.pop_front();
    }
  }

  std::mutex mutex_;
  std::deque<Free> free_;
  uint64_t held_ = 0;
  uint64_t most_ = kUsualLimit / kSpareShare;
};

}  // namespace

Block::Block(uint64_t from, uint64_t to)
    : begin(from), size(to - from), memory(Spare::get().take(size)) {}

Block::~Block() { Spare::get().give(std::move(memory), size); }

Blocks& Blocks::get() {
  static Blocks* const all = new Blocks;  // threads may outlive statics
  return *all;
}

BlockPtr Blocks::find(const void* file, uint64_t at) const {
  auto found = blocks_.upper_bound({file, at});
  if (found == blocks_.begin()) return nullptr;
  --found;
  if (found->first.first != file || found->second->end() <= at) return nullptr;
  return found->second;
}

uint64_t Blocks::next(const void* file, uint64_t at) const {
  const auto found = blocks_.upper_bound({file, at});
  return found == blocks_.end() || found->first.first != file
             ? UINT64_MAX
             : found->first.second;
}

uint64_t Blocks::before(const void* file, uint64_t at) const {
  const auto found = blocks_.lower_bound({file, at});
  if (found == blocks_.begin()) return 0;
  const auto& [key, block] = *std::prev(found);
  return key.first == file ? block->end() : 0;
}

bool Blocks::is_minor(const Block& block) {
  constexpr uint64_t kMostMinor = uint64_t{16} << 10;
  return !block.payload && block.size <= kMostMinor && block.is_there();
}

uint64_t Blocks::next_major(const void* file, uint64_t at) const {
  auto found = blocks_.upper_bound({file, at});
  while (found != blocks_.end() && found->first.first == file &&
         is_minor(*found->second))
    ++found;
  return found == blocks_.end() || found->first.first != file
             ? UINT64_MAX
             : found->first.second;
}

uint64_t Blocks::minor_bytes(const void* file, uint64_t begin,
                             uint64_t end) const {
  uint64_t bytes = 0;
  const BlockPtr first = find(file, begin);
  if (first && is_minor(*first)) bytes = std::min(first->end(), end) - begin;
  for (auto one = blocks_.upper_bound({file, begin});
       one != blocks_.end() && one->first < Key{file, end}; ++one)
    if (is_minor(*one->second))
      bytes += std::min(one->second->end(), end) - one->second->begin;
  return bytes;
}

void Blocks::drop_minor(const void* file, uint64_t begin, uint64_t end) {
  auto one = blocks_.lower_bound({file, begin});
  while (one != blocks_.end() && one->first < Key{file, end}) {
    if (!is_minor(*one->second)) {
      ++one;
      continue;
    }
    kept_ -= one->second->size;
    one = blocks_.erase(one);
  }
}

bool Blocks::make_room(uint64_t bytes, bool payload) {
  const uint64_t most =
      payload ? limit_ - limit_ / kSpareShare : std::max(kMostKept, bytes);
  uint64_t& held = payload ? payload_ : kept_;
  const auto now = std::chrono::steady_clock::now();
  while (held + bytes > most) {
    auto oldest = blocks_.end();
    for (auto one = blocks_.begin(); one != blocks_.end(); ++one) {
      const Block& block = *one->second;
      if (block.payload != payload || !block.is_there()) continue;
      if (payload && !block.is_spent() && now - block.used < kForgotten)
        continue;
      if (oldest == blocks_.end() || block.used < oldest->second->used)
        oldest = one;
    }
    if (oldest == blocks_.end()) return !payload;
    held -= oldest->second->size;
    blocks_.erase(oldest);
  }
  return true;
}

bool Blocks::add(const void* file, const BlockPtr& block) {
  if (!make_room(block->size, block->payload)) return false;
  (block->payload ? payload_ : kept_) += block->size;
  block->used = std::chrono::steady_clock::now();
  blocks_[{file, block->begin}] = block;
  return true;
}

void Blocks::remove(const void* file, const BlockPtr& block) {
  const auto found = blocks_.find({file, block->begin});
  if (found == blocks_.end() || found->second != block) return;
  (block->payload ? payload_ : kept_) -= block->size;
  blocks_.erase(found);
}

void Blocks::took(const BlockPtr& block, uint64_t bytes) {
  block->settled = true;
  block->used = std::chrono::steady_clock::now();
  block->taken += bytes;
}

void Blocks::set_limit(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  Spare::get().set_most(bytes / kSpareShare);
}

uint64_t Blocks::limit() {
  const std::lock_guard lock(mutex_);
  return limit_ - limit_ / kSpareShare;
}

uint64_t Blocks::request_bytes() const {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  return std::clamp(limit_ / 16 / kMiB * kMiB, 2 * kMiB, 8 * kMiB);
}

}  // namespace ckpt::net
