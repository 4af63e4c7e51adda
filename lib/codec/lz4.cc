// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/lz4.h"

#include <algorithm>

namespace ckpt::codec {
namespace {

constexpr uint32_t kMoreLength = 15;
constexpr uint32_t kLeastMatch = 4;

}  // namespace

void Unlz4::restart() {
  at_ = At::kSize;
  field_ = 0;
  size_ = made_ = length_ = 0;
  match_ = back_ = 0;
}

Decoder::Status Unlz4::step(std::span<const std::byte>& input,
                            std::span<std::byte>& output) {
  while (at_ != At::kEnd) {
    if (at_ == At::kLiterals) {
      copy_literals(input, output);
      if (length_ != 0) return Status::kMore;
      at_ = made_ == size_ ? At::kEnd : At::kBack;
    } else if (at_ == At::kMatch) {
      copy_match(output);
      if (length_ != 0) return Status::kMore;
      at_ = At::kToken;
    } else {
      if (input.empty()) return Status::kMore;
      const auto byte = static_cast<uint8_t>(input[0]);
      input = input.subspan(1);
      if (!take(byte)) return Status::kBad;
    }
  }
  return Status::kEnded;
}

bool Unlz4::take(uint8_t byte) {
  switch (at_) {
    case At::kSize:
      size_ |= uint64_t{byte} << (8 * field_);
      if (++field_ == 4) at_ = At::kToken;
      return true;
    case At::kToken:
      field_ = 0;
      back_ = 0;
      length_ = byte >> 4;
      match_ = byte & 15;
      at_ = At::kLiteralLength;
      return length_ == kMoreLength || begin_literals();
    case At::kLiteralLength:
      length_ += byte;
      return byte == 255 ? length_ <= size_ : begin_literals();
    case At::kBack:
      back_ |= uint32_t{byte} << (8 * field_);
      if (++field_ < 2) return true;
      if (back_ == 0 || back_ > made_) return false;
      length_ = match_ + kLeastMatch;
      at_ = At::kMatchLength;
      return match_ == kMoreLength || begin_match();
    case At::kMatchLength:
      length_ += byte;
      return byte == 255 ? length_ <= size_ : begin_match();
    default:
      return false;
  }
}

bool Unlz4::begin_literals() {
  at_ = At::kLiterals;
  return length_ <= size_ - made_;
}

bool Unlz4::begin_match() {
  at_ = At::kMatch;
  return length_ <= size_ - made_;
}

void Unlz4::copy_literals(std::span<const std::byte>& input,
                          std::span<std::byte>& output) {
  const size_t count = static_cast<size_t>(
      std::min<uint64_t>({length_, input.size(), output.size()}));
  for (size_t i = 0; i < count; ++i) {
    output[i] = input[i];
    keep(input[i]);
  }
  input = input.subspan(count);
  output = output.subspan(count);
}

void Unlz4::copy_match(std::span<std::byte>& output) {
  const size_t count =
      static_cast<size_t>(std::min<uint64_t>(length_, output.size()));
  for (size_t i = 0; i < count; ++i) {
    output[i] = window_[(made_ - back_) % kWindow];
    keep(output[i]);
  }
  output = output.subspan(count);
}

}  // namespace ckpt::codec
