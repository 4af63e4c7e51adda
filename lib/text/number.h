// SPDX-License-Identifier: Apache-2.0
// A number in a name or an option: only digits. No sign, no space, nothing
// after the last digit, no overflow: "+1", " 1", "1x" and "" are not numbers,
// so that what they name isn't taken for something else.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace ckpt::text {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
// True if there is nothing else in it, and at least one.
bool is_digits(std::string_view text);

// With leading zeros as some writers make them (007), or only plain (7).
enum class Zeros : uint8_t { kAllowed, kRefused };

std::optional<uint64_t> number(std::string_view text, uint64_t most,
                               Zeros zeros = Zeros::kAllowed);

template <std::unsigned_integral T = uint64_t>
std::optional<T> number(std::string_view text, Zeros zeros = Zeros::kAllowed) {
  const auto value =
      number(text, uint64_t{std::numeric_limits<T>::max()}, zeros);
  return value ? std::optional(static_cast<T>(*value)) : std::nullopt;
}

// Removes the digits at the front of `text` and returns them; nullopt, with
// `text` unchanged, if it doesn't begin with a number.
std::optional<uint64_t> take_number(std::string_view& text,
                                    uint64_t most = UINT64_MAX,
                                    Zeros zeros = Zeros::kAllowed);

}  // namespace ckpt::text
