// SPDX-License-Identifier: Apache-2.0
#include "models/config.h"

#include <fmt/format.h>

namespace ckpt::families {
namespace {

struct Shown {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return fmt::to_string(value); }
  std::string operator()(double value) const { return fmt::to_string(value); }
  std::string operator()(const std::string& value) const { return value; }
};

}  // namespace

std::string to_string(const Scalar& value) {
  return std::visit(Shown{}, value);
}

std::optional<uint64_t> whole_number(const Config& config,
                                     std::string_view key) {
  const auto found = config.find(key);
  if (found == config.end()) return std::nullopt;
  const int64_t* value = std::get_if<int64_t>(&found->second);
  if (value == nullptr || *value < 0) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

}  // namespace ckpt::families
