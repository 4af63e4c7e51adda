// SPDX-License-Identifier: Apache-2.0
// A number that stands in a name or in an option: digits alone. No sign, no
// space, nothing behind the last digit, nothing that overflows: "+1", " 1",
// "1x" and "" are no numbers, so that what they name isn't taken for another.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace ckpt::text {

// As their writers make them (007), or only as they are counted (7).
enum class Zeros : uint8_t { kAllowed, kRefused };

std::optional<uint64_t> number(std::string_view text, uint64_t most,
                               Zeros zeros = Zeros::kAllowed);

template <std::unsigned_integral T = uint64_t>
std::optional<T> number(std::string_view text, Zeros zeros = Zeros::kAllowed) {
  const auto value =
      number(text, uint64_t{std::numeric_limits<T>::max()}, zeros);
  return value ? std::optional(static_cast<T>(*value)) : std::nullopt;
}

// The digits at the front, which are taken off `text`; nothing, and `text` as
// it is, if it doesn't begin with a number.
std::optional<uint64_t> take_number(std::string_view& text,
                                    uint64_t most = UINT64_MAX,
                                    Zeros zeros = Zeros::kAllowed);

}  // namespace ckpt::text
