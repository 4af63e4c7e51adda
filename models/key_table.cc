// SPDX-License-Identifier: Apache-2.0
#include "models/key_table.h"

#include <nlohmann/json.hpp>

#include "lib/text/number.h"
#include "models/fairseq2_section.h"

namespace ckpt::families {
namespace {

// "decoder.layers.7.x" -> "decoder.layers.{i}.x"
std::string template_of(std::string_view key) {
  std::string text;
  while (true) {
    const size_t dot = key.find('.');
    const std::string_view part = key.substr(0, dot);
    text += text::is_digits(part) ? "{i}" : part;
    if (dot == key.npos) return text;
    text += '.';
    key.remove_prefix(dot + 1);
  }
}

// A field of the configuration, or one that fairseq2 derives from another
// ("ffn_inner_dim") or from two ("model_dim / num_attn_heads"). Anything
// derived in another way is unknown.
std::optional<uint64_t> field(std::string_view name, const Config& config,
                              const nlohmann::json& derived) {
  if (const auto given = whole_number(config, name)) return given;
  const auto rule = derived.find(std::string(name));
  if (rule == derived.end() || !rule->is_string()) return std::nullopt;
  const auto& text = rule->get_ref<const std::string&>();
  constexpr std::string_view kOver = " / ";
  const size_t sign = text.find(kOver);
  const auto value = whole_number(config, text.substr(0, sign));
  if (!value || sign == text.npos) return value;
  const auto divisor = whole_number(config, text.substr(sign + kOver.size()));
  if (!divisor || *divisor == 0 || *value % *divisor != 0) return std::nullopt;
  return *value / *divisor;
}

// A product of fields: "num_layers*head_dim".
std::optional<uint64_t> product(std::string_view expression,
                                const Config& config,
                                const nlohmann::json& derived) {
  uint64_t value = 1;
  while (true) {
    const size_t sign = expression.find('*');
    const auto factor = field(expression.substr(0, sign), config, derived);
    if (!factor) return std::nullopt;
    const auto all = checked_mul(value, *factor);
    if (!all) return std::nullopt;
    value = *all;
    if (sign == expression.npos) return value;
    expression.remove_prefix(sign + 1);
  }
}

}  // namespace

KeyTable KeyTable::for_family(const std::string& family, const Config& config) {
  KeyTable table;
  const auto section = fairseq2_section(family);
  if (!section.contains("shapes")) return table;
  const auto derived = section.value("derived", nlohmann::json::object());
  for (const auto& row : section.at("shapes")) {
    Shape shape;
    bool known = true;
    for (const auto& expression : row.at("shape")) {
      const auto size =
          expression.is_string()
              ? product(expression.get<std::string>(), config, derived)
              : std::optional(expression.get<uint64_t>());
      known = known && size.has_value();
      shape.push_back(size.value_or(0));
    }
    if (known) table.shapes_.emplace(row.at("name").get<std::string>(), shape);
  }
  return table;
}

std::optional<Shape> KeyTable::shape(std::string_view key) const {
  if (shapes_.empty()) return std::nullopt;
  const auto found = shapes_.find(template_of(key));
  if (found == shapes_.end()) return std::nullopt;
  return found->second;
}

}  // namespace ckpt::families
