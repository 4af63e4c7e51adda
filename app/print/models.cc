// SPDX-License-Identifier: Apache-2.0
#include "app/print/models.h"

#include <fmt/format.h>

#include <vector>

#include "api/edit/parts.h"
#include "app/print/table.h"
#include "lib/text/format.h"

namespace ckpt::app {

std::string models_text(const Catalog& catalog) {
  constexpr size_t kMost = 4;
  const std::vector<library::StateDict> parts = library::choices_of(catalog);
  if (parts.size() < 2) return "";
  std::string line;
  for (size_t p = 0; p < parts.size() && p < kMost; ++p)
    line +=
        fmt::format("{}{} {}", p == 0 ? "" : ", ", library::part_word(parts[p]),
                    si_count(parts[p].parameters));
  if (parts.size() > kMost)
    line += fmt::format(" and {} more", parts.size() - kMost);
  return text::printable(line + " (--part takes one)");
}

void write_models(JsonWriter& json, const Catalog& catalog) {
  const auto parts = library::choices_of(catalog);
  if (parts.size() < 2) return;
  json.key("models").begin_array();
  for (const library::StateDict& part : parts) {
    json.begin_object();
    json.member("name", library::part_word(part));
    json.member("parameters", part.parameters);
    json.member("bytes", part.bytes);
    json.end_object();
  }
  json.end_array();
}

}  // namespace ckpt::app
