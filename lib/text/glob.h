// SPDX-License-Identifier: Apache-2.0
// --keys and --exclude patterns: * (any run, dots too), ? and [abc] as in a
// shell; {a,b} alternatives; the whole name must match.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ckpt::text {

class Glob {
 public:
  // Throws usage_error for an unclosed [ or {.
  explicit Glob(std::string pattern);
  bool matches(std::string_view name) const;  // linear in name x pattern
  const std::string& pattern() const { return pattern_; }

 private:
  std::string pattern_;
  std::vector<std::string> alternatives_;
};

}  // namespace ckpt::text
