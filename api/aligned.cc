// SPDX-License-Identifier: Apache-2.0
#include "api/aligned.h"

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"

namespace ckpt::library {
namespace {

constexpr uint64_t kAlignment = 64;
// From this size on, buffers get pages of their own, which are zeros and need
// no writing.
constexpr uint64_t kPages = uint64_t{2} << 20;

}  // namespace

Aligned::Aligned(uint64_t bytes) : size_(bytes) {
  if (bytes >= kPages) {
    try {
      pages_ = std::make_unique<io::Buffer>(bytes);
      data_ = pages_->data();
      return;
    } catch (const Error&) {  // the number of mappings is limited: use the heap
    }
  }
  const uint64_t blocks = std::max<uint64_t>(1, bytes / kAlignment + 1);
  block_.reset(static_cast<std::byte*>(
      std::aligned_alloc(kAlignment, blocks * kAlignment)));
  if (!block_)
    throw resource_error({}, "no memory for {} bytes of a tensor", bytes)
        .with_hint("read a part of it");
  data_ = block_.get();
  std::memset(data_, 0, bytes);
}

}  // namespace ckpt::library
