// SPDX-License-Identifier: Apache-2.0
// Memory of value trees: the documents of pickles and JSON texts, which grow
// with what a file says, not with its size. Everything alive in the process
// counts against one limit, and room is reserved before it is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "ckpt/error.h"

namespace ckpt::tree_memory {

// A tree may take this much for each byte read for it; one smaller than kFree
// may take up to kFree. Indexes and states take 1 to 6.
inline constexpr uint64_t kMostPerByte = 16;
inline constexpr uint64_t kFree = uint64_t{16} << 20;

// From --max-mem; 0: half of the machine's memory, but at least 1 GiB.
void set_limit(uint64_t bytes);
uint64_t limit();
uint64_t used();

// No room for `bytes` more. Callers that know the file say more: see fail().
class Full : public Error {
 public:
  explicit Full(uint64_t bytes);
};

// Throws Full; or heap::Full where all that is alive leaves no room.
void take(uint64_t bytes);
void give(uint64_t bytes) noexcept;

// What one owner took, given back with the owner.
class Charge {
 public:
  Charge() = default;
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  Charge(Charge&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = 0; }
  Charge& operator=(Charge&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge() { give(bytes_); }

  void add(uint64_t bytes) {
    take(bytes);
    bytes_ += bytes;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};

// Throws resource_error for a file of which `read` bytes of `size` became
// values of `taken` bytes, with what the whole file would take.
[[noreturn]] void fail(const std::string& path, uint64_t taken, uint64_t read,
                       uint64_t size);

// The same before anything is allocated, for a text of `size` bytes whose tree
// would take `wanted`.
void check(const std::string& path, uint64_t wanted, uint64_t size);

}  // namespace ckpt::tree_memory
