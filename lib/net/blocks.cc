// SPDX-License-Identifier: Apache-2.0
#include "lib/net/blocks.h"

#include <chrono>

namespace ckpt::net {
namespace {

// Headers and directories of many files; a model's own are some MiB.
constexpr uint64_t kMostKept = uint64_t{32} << 20;
// What was not asked for in that time will not be read.
constexpr auto kForgotten = std::chrono::seconds(60);

bool is_there(const Block& block) {
  return block.settled || !block.ticket || is_done(block.ticket);
}

}  // namespace

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

bool Blocks::make_room(uint64_t bytes, bool once) {
  const uint64_t most = once ? limit_ : std::max(kMostKept, bytes);
  uint64_t& held = once ? waiting_ : kept_;
  const auto now = std::chrono::steady_clock::now();
  while (held + bytes > most) {
    auto oldest = blocks_.end();
    for (auto one = blocks_.begin(); one != blocks_.end(); ++one) {
      const Block& block = *one->second;
      if (block.once != once || !is_there(block)) continue;
      if (once && now - block.used < kForgotten) continue;
      if (oldest == blocks_.end() || block.used < oldest->second->used)
        oldest = one;
    }
    if (oldest == blocks_.end()) return !once;
    held -= oldest->second->bytes.size();
    blocks_.erase(oldest);
  }
  return true;
}

bool Blocks::add(const void* file, const BlockPtr& block) {
  if (!make_room(block->bytes.size(), block->once)) return false;
  (block->once ? waiting_ : kept_) += block->bytes.size();
  block->used = std::chrono::steady_clock::now();
  blocks_[{file, block->begin}] = block;
  return true;
}

void Blocks::remove(const void* file, const BlockPtr& block) {
  const auto found = blocks_.find({file, block->begin});
  if (found == blocks_.end() || found->second != block) return;
  (block->once ? waiting_ : kept_) -= block->bytes.size();
  blocks_.erase(found);
}

void Blocks::took(const void* file, const BlockPtr& block, uint64_t bytes) {
  block->settled = true;
  block->used = std::chrono::steady_clock::now();
  block->taken += bytes;
  if (block->once && block->taken >= block->bytes.size()) remove(file, block);
}

void Blocks::set_limit(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}

}  // namespace ckpt::net
