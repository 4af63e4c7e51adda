// SPDX-License-Identifier: Apache-2.0
// A chunk of numcodecs' LZ4: one LZ4 block after the size of its content.
//
//   0        4
//   | u32 n  | sequences that make n bytes |
//
//   sequence  | token | more length | literals | u16 back | more length |
//
// The token's high four bits count literals, the low four the bytes to copy
// from `back` bytes before, less four; 15 continues in further bytes, up to the
// first that is not 255. The last sequence has only literals.
#pragma once

#include <array>

#include "lib/codec/decoder.h"

namespace ckpt::codec {

// Keeps the last 64 KiB of its output, which is as far as a copy reaches.
class Unlz4 : public Decoder {
 public:
  void restart() override;
  Status step(std::span<const std::byte>& input,
              std::span<std::byte>& output) override;
  uint64_t memory() const override { return sizeof(*this); }

 private:
  enum class At : uint8_t {
    kSize,
    kToken,
    kLiteralLength,
    kLiterals,
    kBack,
    kMatchLength,
    kMatch,
    kEnd
  };
  static constexpr size_t kWindow = 1 << 16;

  // Takes one byte in a state other than kLiterals or kMatch; returns false if
  // no block can have it there.
  bool take(uint8_t byte);
  bool begin_literals();
  bool begin_match();
  void copy_literals(std::span<const std::byte>& input,
                     std::span<std::byte>& output);
  void copy_match(std::span<std::byte>& output);
  void keep(std::byte byte) {
    window_[made_++ % kWindow] = byte;
    --length_;
  }

  At at_ = At::kSize;
  uint32_t field_ = 0;   // bytes of a number taken so far
  uint64_t size_ = 0;    // of the content
  uint64_t made_ = 0;    // of it
  uint64_t length_ = 0;  // bytes that a sequence's half still makes
  uint32_t match_ = 0;   // the token's low bits
  uint32_t back_ = 0;    // bytes
  std::array<std::byte, kWindow> window_;
};

}  // namespace ckpt::codec
