// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/models/own_names.h"

#include <utility>

#include "formats/runs/models/titan.h"
#include "formats/runs/models/titan_names.h"

namespace ckpt::runs {

const std::string& parameter_of(const Tensor& tensor) {
  return tensor.kind == Kind::optim ? tensor.param : tensor.name;
}

void set_parameter(Tensor& tensor, std::string name) {
  if (tensor.kind == Kind::optim) {
    tensor.name = name + "." + tensor.state;
    tensor.param = std::move(name);
  } else {
    tensor.name = std::move(name);
  }
}

void into(const families::View& view, Tensor& tensor) {
  tensor.pieces.clear();
  tensor.grid.clear();
  view.into(tensor);
  tensor.tie = 0;
}

std::string_view owner_of_names(const Catalog& catalog) {
  if (is_titans(catalog)) return "torchtitan";
  return has_nanotron_names(catalog) ? "nanotron" : "";
}

void take_transformers_names(Catalog& catalog) {
  if (has_nanotron_names(catalog))
    from_nanotron(catalog);
  else
    from_titan(catalog);
  catalog.dialect = "hf";
}

std::vector<std::string> names_of_other(const std::string& parameter) {
  std::vector<std::string> names = parts_of_nanotron(parameter);
  return names.empty() ? titan::others(parameter) : names;
}

}  // namespace ckpt::runs
