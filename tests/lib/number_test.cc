// SPDX-License-Identifier: Apache-2.0
#include "lib/text/number.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace ckpt::text {
namespace {

// Every text of up to four characters, including hostile ones.
std::vector<std::string> texts() {
  constexpr std::string_view kCharacters("01789+- .xe\0\xb2", 13);
  std::vector<std::string> all{""};
  for (size_t begin = 0, length = 1; length <= 4; ++length) {
    const size_t end = all.size();
    for (size_t i = begin; i < end; ++i)
      for (const char c : kCharacters) all.push_back(all[i] + c);
    begin = end;
  }
  return all;
}

// The count of a text's leading digits, and their value, the long way.
std::pair<size_t, uint64_t> digits_of(std::string_view text) {
  size_t count = 0;
  uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') break;
    value = 10 * value + static_cast<uint64_t>(c - '0');
    ++count;
  }
  return {count, value};
}

}  // namespace

TEST_CASE("number: all texts of up to four characters") {
  size_t taken = 0, wrong = 0;
  for (const std::string& text : texts()) {
    const auto [count, value] = digits_of(text);
    const bool zeros = count > 1 && text[0] == '0';
    for (const uint64_t most : {uint64_t{0}, uint64_t{99}, UINT64_MAX})
      for (const Zeros allowed : {Zeros::kAllowed, Zeros::kRefused}) {
        const bool begins = count != 0 && value <= most &&
                            (allowed == Zeros::kAllowed || !zeros);
        const bool whole = begins && count == text.size();
        wrong += number(text, most, allowed) !=
                 (whole ? std::optional(value) : std::nullopt);
        std::string_view rest = text;
        wrong += take_number(rest, most, allowed) !=
                 (begins ? std::optional(value) : std::nullopt);
        wrong += rest != std::string_view(text).substr(begins ? count : 0);
        taken += whole;
      }
  }
  CHECK(wrong == 0);
  CHECK(taken > 1000);
}

TEST_CASE("number: what overflows is no number") {
  CHECK(number("18446744073709551615") == UINT64_MAX);
  CHECK(!number("18446744073709551616"));
  CHECK(!number("99999999999999999999999999999999999999"));
  CHECK(number("00000000000000000000000000000000000007") == 7);
  CHECK(!number("07", Zeros::kRefused));
  CHECK(number<uint32_t>("4294967295") == UINT32_MAX);
  CHECK(!number<uint32_t>("4294967296"));
  CHECK(number<uint8_t>("255") == 255);
  CHECK(!number<uint8_t>("256"));
  std::string_view rest = "18446744073709551616.x";
  CHECK(!take_number(rest));
  CHECK(rest == "18446744073709551616.x");
}

}  // namespace ckpt::text
