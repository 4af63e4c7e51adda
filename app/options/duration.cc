// SPDX-License-Identifier: Apache-2.0
#include "app/options/duration.h"

#include <charconv>
#include <string_view>

#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::app {

std::chrono::duration<double> duration_value(const std::string& option,
                                             const std::string& text) {
  double count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, count);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  const double factor = unit.empty() || unit == "s" ? 1
                        : unit == "m"               ? 60
                        : unit == "h"               ? 3600
                                                    : 0;
  if (failure != std::errc{} || !(count >= 0) || factor == 0 || count > 1e9)
    throw usage_error({}, "{} '{}': expected a time as 90s, 10m or 2h", option,
                      text::printable(text));
  return std::chrono::duration<double>(count * factor);
}

}  // namespace ckpt::app
