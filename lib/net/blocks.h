// SPDX-License-Identifier: Apache-2.0
// Blocks of files that are in memory or on their way, of all files together.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/net/http.h"

namespace ckpt::net {

struct Block {
  uint64_t begin = 0;
  std::vector<std::byte> bytes;
  Ticket ticket;         // null: the bytes are there
  bool once = false;     // it is gone when all was read
  bool settled = false;  // the ticket was waited for
  uint64_t taken = 0;    // bytes that were read
  std::chrono::steady_clock::time_point used;

  uint64_t end() const { return begin + bytes.size(); }
};
using BlockPtr = std::shared_ptr<Block>;

class Blocks {
 public:
  static Blocks& get();

  std::mutex& mutex() { return mutex_; }

  // These with the mutex held. The block that has byte `at`; null if none has.
  BlockPtr find(const void* file, uint64_t at) const;
  // Where the first block begins behind `at`, or UINT64_MAX; where the last
  // one before it ends, or 0.
  uint64_t next(const void* file, uint64_t at) const;
  uint64_t before(const void* file, uint64_t at) const;
  // Makes room; false if what is read once does not fit.
  bool add(const void* file, const BlockPtr& block);
  void remove(const void* file, const BlockPtr& block);
  void took(const void* file, const BlockPtr& block, uint64_t bytes);

  void set_limit(uint64_t bytes);

 private:
  using Key = std::pair<const void*, uint64_t>;
  bool make_room(uint64_t bytes, bool once);

  std::mutex mutex_;
  std::map<Key, BlockPtr> blocks_;
  uint64_t kept_ = 0;     // bytes of blocks that stay
  uint64_t waiting_ = 0;  // of those that are read once
  uint64_t limit_ = uint64_t{64} << 20;
};

}  // namespace ckpt::net
