// SPDX-License-Identifier: Apache-2.0
#include "lib/sha256.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/sha256_kernel.h"

namespace ckpt {

void Sha256::add_blocks(const std::byte* bytes, size_t blocks) {
  static const sha256::Kernel& fastest = sha256::kernels().back();
  if (blocks != 0) fastest.run(state_, bytes, blocks);
}

void Sha256::update(std::span<const std::byte> bytes) {
  size_t held = size_ % kBlock;
  size_ += bytes.size();
  if (held != 0) {
    const size_t count = std::min(bytes.size(), kBlock - held);
    std::copy_n(bytes.begin(), count, rest_.begin() + held);
    bytes = bytes.subspan(count);
    if (held + count < kBlock) return;
    add_blocks(rest_.data(), 1);
  }
  const size_t blocks = bytes.size() / kBlock;
  add_blocks(bytes.data(), blocks);
  bytes = bytes.subspan(blocks * kBlock);
  std::ranges::copy(bytes, rest_.begin());
}

// Appends a one bit, zeros up to eight bytes before a block's end, and the size
// in bits.
std::string Sha256::hex() {
  const uint64_t bits = size_ * 8;
  std::array<std::byte, 2 * kBlock> end{};
  end[0] = std::byte{0x80};
  const size_t held = size_ % kBlock;
  const size_t count = (held < 56 ? 56 : 120) - held;
  for (size_t i = 0; i < 8; ++i)
    end[count + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(std::span(end).first(count + 8));
  std::string text;
  for (const uint32_t word : state_) text += fmt::format("{:08x}", word);
  return text;
}

}  // namespace ckpt
