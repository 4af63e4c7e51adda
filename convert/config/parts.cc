// SPDX-License-Identifier: Apache-2.0
#include "convert/config/parts.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>

#include "ckpt/note.h"
#include "convert/config/facts_table.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"

namespace ckpt::families {

void add_text(Catalog& catalog, std::string name, std::string text) {
  Sidecar sidecar;
  sidecar.path = "made:" + name;
  sidecar.name = std::move(name);
  sidecar.size = text.size();
  sidecar.text = std::make_shared<const std::string>(std::move(text));
  catalog.sidecars.push_back(std::move(sidecar));
}

namespace {

void write_json(const Json& value, size_t indent, std::string& text) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    text += std::isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity";
    return;
  }
  if (!value.is_structured() || value.empty()) {
    text += value.dump();
    return;
  }
  const std::string line = "\n" + std::string(indent + 2, ' ');
  std::string_view before = value.is_object() ? "{" : "[";
  for (const auto& [key, item] : value.items()) {
    text.append(before).append(line);
    if (value.is_object()) text += Json(key).dump() + ": ";
    write_json(item, indent + 2, text);
    before = ",";
  }
  text += "\n" + std::string(indent, ' ') + (value.is_object() ? "}" : "]");
}

}  // namespace

std::string config_text(const Json& config) {
  std::string text;
  write_json(config, 0, text);
  return text + "\n";
}

void add_object(Catalog& catalog, std::string name, const Json& value) {
  std::erase_if(catalog.objects, [&](const Object& object) {
    return object.name == name || object.name.starts_with(name + ".");
  });
  auto document = std::make_shared<pickle::Document>();
  const pickle::Id node = pickle::from_json(*document, value);
  catalog.objects.push_back(
      {.name = std::move(name), .document = std::move(document), .node = node});
}

std::string torch_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    case DType::f64:
      return "float64";
    default:
      return "float32";
  }
}

void warn_of_unsaid(const std::vector<FactDifference>& unsaid,
                    const std::string& what, Catalog& catalog) {
  if (unsaid.empty()) return;
  std::string list;
  for (const FactDifference& one : unsaid)
    list += fmt::format("{}{} is {} (there: {})", list.empty() ? "" : ", ",
                        one.name, shown_fact(one.a), shown_fact(one.b));
  catalog.problems.push_back(
      warning("unsaid", {catalog.path, {}},
              "{} can't say all of the model: {}; what is built from it "
              "alone computes something else",
              what, text::printable(list)));
}

}  // namespace ckpt::families
