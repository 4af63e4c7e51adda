// SPDX-License-Identifier: Apache-2.0
#include "api/strictness.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ckpt/error.h"

namespace ckpt::library {
namespace {

std::string list_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 20;
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

void Strictness::judge(std::vector<std::string>& unexpected,
                       std::vector<std::string>& missing) const {
  using enum StrictHandling;
  const StrictHandling mode = options_.strict;
  const bool raises = mode == kAssumeOkUnexpected || mode == kRaiseUnexpected ||
                      mode == kRaiseAll;
  const bool logs = mode == kLogUnexpected || mode == kLogAll;
  std::string line;
  const auto add = [&](const std::vector<std::string>& names,
                       std::string_view what) {
    if (names.empty()) return;
    line += fmt::format("{}{} {}: {}", line.empty() ? "" : "; ", names.size(),
                        what, list_of(names));
  };
  add(unexpected, "requested and not in the checkpoint");
  if (mode == kRaiseAll || mode == kLogAll)
    add(missing, "in the checkpoint and not requested");
  if (!line.empty() && raises) throw unfaithful_error({path_, {}}, "{}", line);
  if (!line.empty() && logs && options_.log) options_.log(line);
  if (mode != kReturnUnexpected && mode != kReturnAll) unexpected.clear();
  if (mode != kReturnAll) missing.clear();
}

}  // namespace ckpt::library
