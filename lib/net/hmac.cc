// SPDX-License-Identifier: Apache-2.0
#include "lib/net/hmac.h"

#include <cstdint>
#include <span>

#include "lib/hash/sha256.h"

namespace ckpt::net {
namespace {

constexpr size_t kHashBlock = 64;

std::string bytes_of_hex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  return bytes;
}

std::string sum_of_two(std::string_view a, std::string_view b) {
  Sha256 sum;
  sum.update(std::as_bytes(std::span(a)));
  sum.update(std::as_bytes(std::span(b)));
  return sum.hex();
}

std::string padded(std::string key, unsigned char with) {
  key.resize(kHashBlock, '\0');
  for (char& c : key)
    c = static_cast<char>(static_cast<unsigned char>(c) ^ with);
  return key;
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view text) {
  constexpr unsigned char kInner = 0x36, kOuter = 0x5c;
  const std::string used = key.size() > kHashBlock
                               ? bytes_of_hex(sum_of_two(key, ""))
                               : std::string(key);
  return sum_of_two(padded(used, kOuter),
                    bytes_of_hex(sum_of_two(padded(used, kInner), text)));
}

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  std::string bytes;
  uint32_t held = 0;
  int bits = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) return std::nullopt;
    held = held << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> bits & 0xff);
  }
  return bytes;
}

}  // namespace ckpt::net
