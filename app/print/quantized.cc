// SPDX-License-Identifier: Apache-2.0
#include "app/print/quantized.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "app/print/table.h"
#include "ckpt/error.h"
#include "convert/quantized/quantized.h"
#include "lib/text/format.h"

namespace ckpt::app {

// Small tensors of files on a server cost a request each.
static bool is_local(const Catalog& catalog) {
  return std::ranges::none_of(catalog.files, [](const File& file) {
    return file.path.find("://") != file.path.npos;
  });
}

std::vector<families::LogicalWeight> quantized_of(const Catalog& catalog) {
  try {
    return families::logical_weights(catalog, is_local(catalog));
  } catch (const Error&) {
    return {};  // --dtype says what is wrong
  }
}

std::string quantized_text(const Catalog& catalog) {
  std::map<std::string, uint64_t> kinds;
  const auto weights = quantized_of(catalog);
  std::unordered_set<std::string_view> parts;
  for (const families::LogicalWeight& weight : weights) {
    parts.insert(weight.parts.begin(), weight.parts.end());
    ++kinds[fmt::format("{} ({} bits, {}){}", weight.method, weight.bits,
                        weight.block,
                        weight.open.empty() ? "" : ", not known")];
  }
  uint64_t count = weights.size();
  for (const auto& codes : families::quantized_weights(catalog)) {
    if (parts.contains(codes.name)) continue;
    ++kinds[families::kind_of(codes, catalog) +
            " (not known, counted as codes)"];
    ++count;
  }
  std::string text;
  for (const auto& [kind, of_it] : kinds)
    text +=
        (text.empty() ? "" : ", ") +
        (kinds.size() == 1 ? kind : fmt::format("{} {}", grouped(of_it), kind));
  return count ? text::counted(count, "weight") + ": " + text : text;
}

}  // namespace ckpt::app
