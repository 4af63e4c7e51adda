// SPDX-License-Identifier: Apache-2.0
// Memory that payload passes through. Every copy into and out of the page cache
// touches it, so it is worth its own pages.
//
// Whole huge pages (2 MiB) where the kernel gives them: with pages of 4 KiB
// each pass over a block misses the TLB hundreds of times, and more so in a
// virtual machine (figures: docs/performance.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt::io {

class Buffer {
 public:
  // Allocates `bytes`, uninitialised. Throws resource_error if there is no
  // memory.
  explicit Buffer(uint64_t bytes);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }

 private:
  void* mapping_ = nullptr;
  uint64_t mapped_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace ckpt::io
