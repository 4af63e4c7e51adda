// SPDX-License-Identifier: Apache-2.0
// io_uring, as far as reads need it. Builds without liburing have none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ckpt::io {

class Ring {
 public:
  // Returns null, with the reason in `errnum`, if the kernel has none, or none
  // for this process: containers often forbid it.
  static std::unique_ptr<Ring> make(uint32_t entries, int& errnum);
  virtual ~Ring() = default;

  // Begins to read into `buffer`, which must stay until wait() returns `tag`.
  // At most `entries` may be in flight. Throws kIo.
  virtual void read(int fd, uint64_t offset, std::span<std::byte> buffer,
                    uint32_t tag) = 0;

  struct Done {
    uint32_t tag = 0;
    int result = 0;  // bytes read, or a negated errno
  };
  // Waits for one of the reads that were begun; there must be one.
  virtual Done wait() = 0;
};

}  // namespace ckpt::io
