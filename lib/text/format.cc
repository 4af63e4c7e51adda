// SPDX-License-Identifier: Apache-2.0
#include "lib/text/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "ckpt/box.h"
#include "ckpt/error.h"
#include "lib/text/hostile.h"
#include "lib/text/utf8.h"
#include "lib/text/words.h"

namespace ckpt::text {
namespace {

struct Unit {
  std::string_view name;  // lower case
  uint64_t bytes;
};

constexpr auto kUnits = std::to_array<Unit>({
    {"", 1},
    {"b", 1},
    {"kb", 1'000},
    {"mb", 1'000'000},
    {"gb", 1'000'000'000},
    {"tb", 1'000'000'000'000},
    {"pb", 1'000'000'000'000'000},
    // As in Slurm, zstd and duckdb.
    {"k", uint64_t{1} << 10},
    {"m", uint64_t{1} << 20},
    {"g", uint64_t{1} << 30},
    {"t", uint64_t{1} << 40},
    {"p", uint64_t{1} << 50},
    {"kib", uint64_t{1} << 10},
    {"mib", uint64_t{1} << 20},
    {"gib", uint64_t{1} << 30},
    {"tib", uint64_t{1} << 40},
    {"pib", uint64_t{1} << 50},
});

[[noreturn]] void bad_size(std::string_view text) {
  throw usage_error({}, "invalid size \"{}\"", printable(text))
      .with_hint("sizes look like 5GB (5 * 10^9), 5GiB (5 * 2^30) or 4096");
}

const Unit* find_unit(std::string_view text) {
  const std::string wanted = lower(text);
  for (const Unit& unit : kUnits)
    if (unit.name == wanted) return &unit;
  return nullptr;
}

}  // namespace

std::string iec_size(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 6> kNames = {"KiB", "MiB", "GiB",
                                                      "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.96 would be printed as 1024.0 in the smaller unit.
  for (; value >= 1023.95 && unit + 1 < kNames.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kNames[unit]);
}

std::string counted(uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

uint64_t parse_size(std::string_view text) {
  const size_t end =
      std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view spelled = text.substr(0, end);
  const size_t dot = std::min(spelled.find('.'), spelled.size());
  const size_t space = std::min(text.find_first_not_of(' ', end), text.size());
  const Unit* unit = find_unit(text.substr(space));
  uint64_t whole = 0;
  const auto parsed =
      std::from_chars(spelled.data(), spelled.data() + dot, whole);
  if (unit == nullptr || parsed.ec == std::errc::invalid_argument)
    bad_size(text);

  uint64_t part = 0;  // of a unit, in bytes
  if (dot < spelled.size()) {
    const std::string digits = "0" + std::string(spelled.substr(dot));
    const bool one_dot = spelled.find('.', dot + 1) == spelled.npos;
    if (!one_dot || digits.size() == 2) bad_size(text);
    part = static_cast<uint64_t>(
        std::llround(std::strtod(digits.c_str(), nullptr) *
                     static_cast<double>(unit->bytes)));
  }
  const auto bytes = checked_mul(whole, unit->bytes);
  const auto sum = bytes ? checked_add(*bytes, part) : std::nullopt;
  if (!sum || parsed.ec != std::errc())
    throw usage_error({}, "{} is more than 64 bits hold", printable(text))
        .with_hint("sizes look like 5GB (5 * 10^9), 5GiB (5 * 2^30) or 4096");
  return *sum;
}

std::string printable(std::string_view name) {
  std::string shown;
  shown.reserve(name.size());
  while (!name.empty()) {
    const Utf8Char c = first_char(name);
    const size_t length = std::max<size_t>(c.length, 1);
    if (c.length > 0 && !is_hostile(c.code)) {
      shown += name.substr(0, length);
    } else {
      for (const char byte : name.substr(0, length))
        shown += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
    }
    name.remove_prefix(length);
  }
  return shown;
}

}  // namespace ckpt::text
