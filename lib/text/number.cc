// SPDX-License-Identifier: Apache-2.0
#include "lib/text/number.h"

#include <algorithm>
#include <charconv>

namespace ckpt::text {

std::optional<uint64_t> take_number(std::string_view& text, uint64_t most,
                                    Zeros zeros) {
  const size_t digits =
      std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0) return std::nullopt;
  if (zeros == Zeros::kRefused && digits > 1 && text[0] == '0')
    return std::nullopt;
  uint64_t value = 0;
  const auto [end, failure] =
      std::from_chars(text.data(), text.data() + digits, value);
  if (failure != std::errc() || value > most) return std::nullopt;
  text.remove_prefix(digits);
  return value;
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_digit);
}

std::optional<uint64_t> number(std::string_view text, uint64_t most,
                               Zeros zeros) {
  const auto value = take_number(text, most, zeros);
  return text.empty() ? value : std::nullopt;
}

}  // namespace ckpt::text
