// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/bigint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ckpt::pickle {
namespace {

constexpr uint32_t kBillion = 1'000'000'000;

void negate(std::string& little_endian) {
  unsigned carry = 1;
  for (char& c : little_endian) {
    carry += static_cast<uint8_t>(~static_cast<uint8_t>(c));
    c = static_cast<char>(carry & 0xFF);
    carry >>= 8;
  }
}

bool is_negative(std::string_view little_endian) {
  return !little_endian.empty() &&
         (static_cast<uint8_t>(little_endian.back()) & 0x80) != 0;
}

}  // namespace

std::string decimal_of(std::string_view little_endian) {
  std::string magnitude(little_endian);
  const bool negative = is_negative(little_endian);
  if (negative) negate(magnitude);

  std::vector<uint32_t> limbs;  // base 10^9, least first
  for (size_t i = magnitude.size(); i-- > 0;) {
    uint64_t carry = static_cast<uint8_t>(magnitude[i]);
    for (uint32_t& limb : limbs) {
      carry += uint64_t{limb} << 8;
      limb = static_cast<uint32_t>(carry % kBillion);
      carry /= kBillion;
    }
    if (carry != 0) limbs.push_back(static_cast<uint32_t>(carry));
  }
  if (limbs.empty()) return "0";
  std::string text = negative ? "-" : "";
  text += fmt::format("{}", limbs.back());
  for (size_t i = limbs.size() - 1; i-- > 0;)
    text += fmt::format("{:09}", limbs[i]);
  return text;
}

std::string bytes_of(std::string_view decimal) {
  const bool negative = decimal.starts_with('-');
  if (negative) decimal.remove_prefix(1);
  std::string bytes;
  for (const char digit : decimal) {
    unsigned carry = static_cast<unsigned>(digit - '0');
    for (char& c : bytes) {
      carry += static_cast<uint8_t>(c) * 10u;
      c = static_cast<char>(carry & 0xFF);
      carry >>= 8;
    }
    if (carry != 0) bytes.push_back(static_cast<char>(carry));
  }
  if (bytes.empty()) return bytes;
  bytes.push_back(0);  // room for the sign
  if (negative) negate(bytes);
  while (bytes.size() > 1) {
    const char sign = is_negative(bytes) ? '\xFF' : '\0';
    const std::string_view rest(bytes.data(), bytes.size() - 1);
    if (bytes.back() != sign || is_negative(rest) != negative) break;
    bytes.pop_back();
  }
  return bytes;
}

std::optional<std::string> plain_decimal(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  text = text.substr(0, text.find_last_not_of(kSpace) + 1);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() ||
      text.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  text.remove_prefix(std::min(text.find_first_not_of('0'), text.size()));
  if (text.empty()) return "0";
  return (negative ? "-" : "") + std::string(text);
}

}  // namespace ckpt::pickle
