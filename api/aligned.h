// SPDX-License-Identifier: Apache-2.0
// Elements for other libraries' arrays. They share memory that begins at a
// multiple of 64 bytes; of any other, some make a copy without a word (jax).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ckpt/box.h"
#include "ckpt/ckpt.h"
#include "lib/io/buffer.h"

namespace ckpt::library {

class Aligned {
 public:
  explicit Aligned(uint64_t bytes);  // zeros
  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<io::Buffer> pages_;
  std::unique_ptr<std::byte, Free> block_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A whole tensor, or a box of it, as Checkpoint::read has them.
Aligned read_aligned(const Checkpoint& checkpoint, const std::string& name,
                     const std::optional<Box>& box);
// The same of a tensor of its catalog.
Aligned read_aligned(const Checkpoint& checkpoint, const Tensor& tensor,
                     const std::optional<Box>& box);

}  // namespace ckpt::library
