// SPDX-License-Identifier: Apache-2.0
#include "convert/config_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "ckpt/note.h"
#include "convert/facts_table.h"
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
