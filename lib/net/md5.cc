// SPDX-License-Identifier: Apache-2.0
#include "lib/net/md5.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace ckpt::net {
namespace {

constexpr int kTurns[4][4] = {
    {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

// RFC 1321, 3.4: the integer part of 2^32 times |sin(i)|.
const std::array<uint32_t, 64>& sines() {
  static const std::array<uint32_t, 64> all = [] {
    std::array<uint32_t, 64> made{};
    for (size_t i = 0; i < made.size(); ++i)
      made[i] = static_cast<uint32_t>(
          std::fabs(std::sin(static_cast<double>(i + 1))) * 4294967296.0);
    return made;
  }();
  return all;
}

uint32_t little(const std::byte* at) {
  uint32_t word = 0;
  for (int i = 3; i >= 0; --i) word = word << 8 | static_cast<uint32_t>(at[i]);
  return word;
}

}  // namespace

void Md5::block(const std::byte* bytes) {
  static const std::array<uint32_t, 64>& table = sines();
  uint32_t words[16];
  for (size_t i = 0; i < 16; ++i) words[i] = little(bytes + 4 * i);
  auto [a, b, c, d] = state_;
  for (uint32_t i = 0; i < 64; ++i) {
    uint32_t mixed = 0, word = 0;
    switch (i / 16) {
      case 0:
        mixed = (b & c) | (~b & d);
        word = i;
        break;
      case 1:
        mixed = (d & b) | (~d & c);
        word = (5 * i + 1) % 16;
        break;
      case 2:
        mixed = b ^ c ^ d;
        word = (3 * i + 5) % 16;
        break;
      default:
        mixed = c ^ (b | ~d);
        word = 7 * i % 16;
    }
    const uint32_t sum = a + mixed + table[i] + words[word];
    a = d;
    d = c;
    c = b;
    b += std::rotl(sum, kTurns[i / 16][i % 4]);
  }
  state_[0] += a;
  state_[1] += b;
  state_[2] += c;
  state_[3] += d;
}

void Md5::update(std::span<const std::byte> bytes) {
  const size_t held = size_ % kBlock;
  size_ += bytes.size();
  if (held) {
    const size_t taken = std::min(kBlock - held, bytes.size());
    std::memcpy(rest_.data() + held, bytes.data(), taken);
    bytes = bytes.subspan(taken);
    if (held + taken < kBlock) return;
    block(rest_.data());
  }
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock))
    block(bytes.data());
  if (!bytes.empty()) std::memcpy(rest_.data(), bytes.data(), bytes.size());
}

std::string Md5::hex() {
  const uint64_t bits = size_ * 8;
  std::array<std::byte, kBlock + 8> tail{std::byte{0x80}};
  const size_t held = size_ % kBlock;
  const size_t zeros = (held < 56 ? 56 : 56 + kBlock) - held;
  update(std::span(tail).first(zeros));
  std::array<std::byte, 8> length;
  for (size_t i = 0; i < 8; ++i)
    length[i] = static_cast<std::byte>(bits >> (8 * i));
  update(length);
  std::string text;
  for (const uint32_t word : state_)
    for (uint32_t i = 0; i < 4; ++i)
      text += fmt::format("{:02x}", (word >> (8 * i)) & 255);
  return text;
}

std::string base64_of_hex(const std::string& hex) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto nibble = [&](size_t i) -> uint32_t {
    if (i >= hex.size()) return 0;
    const char c = hex[i];
    return static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  };
  std::string text;
  for (size_t at = 0; at < hex.size(); at += 6) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 6; ++i) bits = bits << 4 | nibble(at + i);
    for (uint32_t i = 0; i < 4; ++i)
      text += kDigits[(bits >> (18 - 6 * i)) & 63];
  }
  const size_t missing = (3 - hex.size() / 2 % 3) % 3;
  text.replace(text.size() - missing, missing, missing, '=');
  return text;
}

}  // namespace ckpt::net
