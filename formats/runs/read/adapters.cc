// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/names.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

// PreTrainedModel.save_pretrained writes these; PeftModel's only an adapter,
// its configuration and a README.md.
bool is_of_model(const std::string& name) {
  constexpr auto kWeights =
      std::to_array<std::string_view>({"model", "pytorch_model"});
  if (name == "generation_config.json" || name == "config.json") return true;
  return std::ranges::any_of(kWeights, [&](std::string_view stem) {
    if (!name.starts_with(stem)) return false;
    const std::string_view rest = std::string_view(name).substr(stem.size());
    return (rest.starts_with('-') || rest.starts_with('.')) &&
           (rest.ends_with(".safetensors") || rest.ends_with(".bin") ||
            rest.ends_with(".index.json"));
  });
}

std::string trace_in(const std::string& folder) {
  if (!io::is_directory(folder)) return {};
  for (const std::string& name : io::names_in(folder))
    if (is_of_model(name)) return name;
  return {};
}

}  // namespace

std::string trace_of_model(const std::string& folder,
                           const std::string& beside) {
  if (const std::string name = trace_in(folder); !name.empty())
    return text::printable(name) + " in it";
  if (beside.empty()) return {};
  if (const std::string name = trace_in(beside); !name.empty())
    return fmt::format("{} in {}", text::printable(name),
                       text::printable(io::base_name(beside)));
  return {};
}

void check_trained(const std::string& folder, const Catalog& catalog) {
  uint64_t stored = 0;
  std::set<std::string_view> trained;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.shape.size() < 2) continue;
    if (tensor.kind == Kind::model)
      ++stored;
    else if (tensor.kind == Kind::optim && !tensor.param.empty())
      trained.insert(tensor.param);
  }
  if (trained.size() <= stored) return;
  throw input_error({folder, {}},
                    "is a step without a model: the optimizer trains {} "
                    "matrices, the adapters in folders of it have {}",
                    trained.size(), stored)
      .with_hint(
          "copy the model's weights again; to read an adapter, name its "
          "folder");
}

}  // namespace ckpt::runs
