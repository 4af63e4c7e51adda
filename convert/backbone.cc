// SPDX-License-Identifier: Apache-2.0
#include "convert/backbone.h"

#include <algorithm>
#include <array>
#include <string>

namespace ckpt::families {

std::string_view class_of(const Json& config) {
  if (!config.is_object()) return {};
  const auto found = config.find("architectures");
  if (found == config.end() || !found->is_array() || found->empty() ||
      !found->front().is_string())
    return {};
  return found->front().get_ref<const std::string&>();
}

bool is_other_class(const Json& config, const Family& family) {
  const std::string_view name = class_of(config);
  const auto& known = family.hf().architectures;
  return !name.empty() && std::ranges::find(known, name) == known.end();
}

std::string_view task_head(const Json& config) {
  struct Task {
    std::string_view ending, module;
  };
  // The Generic… classes in transformers' modeling_layers.py.
  constexpr auto kTasks =
      std::to_array<Task>({{"ForSequenceClassification", "score"},
                           {"ForTokenClassification", "score"},
                           {"ForQuestionAnswering", "qa_outputs"}});
  const std::string_view name = class_of(config);
  const auto task = std::ranges::find_if(
      kTasks, [&](const Task& one) { return name.ends_with(one.ending); });
  return task == kTasks.end() ? std::string_view() : task->module;
}

std::string_view backbone_prefix(const Json& config, const Family& family,
                                 const std::vector<Tensor>& tensors) {
  constexpr std::string_view kModel = "model.";
  const auto has = [&](const Tensor& tensor) {
    return tensor.name.starts_with(kModel) ||
           tensor.name.find(".model.") != std::string::npos;
  };
  // Falcon's names begin with "transformer.", whatever its class is called.
  const auto asks = [&](const Rule& rule) {
    return std::ranges::any_of(rule.hf, [&](const std::string& name) {
      return name.starts_with(kModel);
    });
  };
  return is_other_class(config, family) && std::ranges::none_of(tensors, has) &&
                 std::ranges::any_of(family.dialects(),
                                     [&](const Dialect& dialect) {
                                       return std::ranges::any_of(dialect.rules,
                                                                  asks);
                                     })
             ? kModel
             : std::string_view();
}

}  // namespace ckpt::families
