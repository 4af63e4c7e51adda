// SPDX-License-Identifier: Apache-2.0
#include "app/print/quantized.h"

#include <fmt/format.h>

#include <map>

#include "app/print/table.h"
#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::app {

std::vector<families::LogicalWeight> quantized_of(const Catalog& catalog) {
  try {
    return families::logical_weights(catalog);
  } catch (const Error&) {
    return {};  // --dtype says what is wrong
  }
}

std::string quantized_text(
    const std::vector<families::LogicalWeight>& weights) {
  if (weights.empty()) return {};
  std::map<std::string, uint64_t> kinds;
  for (const families::LogicalWeight& weight : weights)
    ++kinds[fmt::format("{} ({} bits, {})", weight.method, weight.bits,
                        weight.block)];
  std::string text;
  for (const auto& [kind, count] : kinds)
    text +=
        (text.empty() ? "" : ", ") +
        (kinds.size() == 1 ? kind : fmt::format("{} {}", grouped(count), kind));
  return text::counted(weights.size(), "weight") + ": " + text;
}

}  // namespace ckpt::app
