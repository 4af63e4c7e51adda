// SPDX-License-Identifier: Apache-2.0
#include "api/strictness.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ckpt/error.h"

namespace ckpt::library {
namespace {

std::string list_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 5;
  const size_t shown = std::min(names.size(), kMost);
  std::string text = fmt::format(
      "{}",
      fmt::join(names.begin(),
                names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (names.size() > shown)
    text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace

std::vector<std::string> Strictness::unexpected(
    std::vector<std::string> names) const {
  using enum StrictHandling;
  const StrictHandling mode = options_.strict;
  apply(names, "requested and not in the checkpoint",
        mode == kAssumeOkUnexpected || mode == kRaiseUnexpected ||
            mode == kRaiseAll,
        mode == kLogUnexpected || mode == kLogAll);
  if (mode != kReturnUnexpected && mode != kReturnAll) names.clear();
  return names;
}

std::vector<std::string> Strictness::missing(
    std::vector<std::string> names) const {
  using enum StrictHandling;
  const StrictHandling mode = options_.strict;
  apply(names, "in the checkpoint and not requested", mode == kRaiseAll,
        mode == kLogAll);
  if (mode != kReturnAll) names.clear();
  return names;
}

void Strictness::apply(const std::vector<std::string>& names,
                       std::string_view what, bool raise, bool log) const {
  if (names.empty()) return;
  const std::string line =
      fmt::format("{} {}: {}", names.size(), what, list_of(names));
  if (raise) throw unfaithful_error({path_, {}}, "{}", line);
  if (log && options_.log) options_.log(line);
}

}  // namespace ckpt::library
