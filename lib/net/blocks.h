// SPDX-License-Identifier: Apache-2.0
// The blocks of all remote files that are in memory or on their way.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/net/http.h"

namespace ckpt::net {

struct Block {
  Block(uint64_t from, uint64_t to);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  uint64_t begin;
  uint64_t size;
  std::unique_ptr<std::byte[]> memory;
  Ticket ticket;         // null: the bytes are there
  bool payload = false;  // makes room for others once all of it was read
  bool settled = false;  // the ticket has been waited for
  uint64_t wanted = 0;   // of payload, the bytes that will be read
  uint64_t taken = 0;    // bytes read so far
  std::chrono::steady_clock::time_point used;

  uint64_t end() const { return begin + size; }
  std::span<std::byte> bytes() const { return {memory.get(), size}; }
  bool is_spent() const { return payload && taken >= wanted; }
  bool is_there() const { return settled || !ticket || is_done(ticket); }
};
using BlockPtr = std::shared_ptr<Block>;

class Blocks {
 public:
  static Blocks& get();

  std::mutex& mutex() { return mutex_; }

  // The following are called with the mutex held. The block with byte `at`;
  // null if there is none.
  BlockPtr find(const void* file, uint64_t at) const;
  // The start of the first block after `at`, or UINT64_MAX; the end of the last
  // one before it, or 0.
  uint64_t next(const void* file, uint64_t at) const;
  uint64_t before(const void* file, uint64_t at) const;
  // Small blocks of headers that are there cut payload into as many requests as
  // it has records. So payload may be fetched over them: next() without those,
  // how many of the bytes [begin, end) they have, and their end.
  static bool is_minor(const Block& block);
  uint64_t next_major(const void* file, uint64_t at) const;
  uint64_t minor_bytes(const void* file, uint64_t begin, uint64_t end) const;
  void drop_minor(const void* file, uint64_t begin, uint64_t end);
  // Makes room for payload; returns false if there is none.
  bool has_room(uint64_t bytes) { return make_room(bytes, true); }
  // Makes room; returns false if payload does not fit.
  bool add(const void* file, const BlockPtr& block);
  void remove(const void* file, const BlockPtr& block);
  static void took(const BlockPtr& block, uint64_t bytes);

  void set_limit(uint64_t bytes);
  uint64_t limit();  // for payload: the rest is memory that is used again
  // Of one request for payload: many of them fit.
  uint64_t request_bytes() const;

 private:
  using Key = std::pair<const void*, uint64_t>;
  bool make_room(uint64_t bytes, bool payload);

  std::mutex mutex_;
  std::map<Key, BlockPtr> blocks_;
  uint64_t kept_ = 0;     // bytes of headers and the like
  uint64_t payload_ = 0;  // and of payload
  uint64_t limit_ = uint64_t{64} << 20;
};

}  // namespace ckpt::net
