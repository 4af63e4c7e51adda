// SPDX-License-Identifier: Apache-2.0
#include "convert/litgpt.h"

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "convert/told_config.h"
#include "convert/yaml_values.h"
#include "lib/embedded.h"
#include "lib/text/format.h"

namespace ckpt::families {
namespace {

const Json& litgpt_table() {
  static const Json table = Json::parse(embedded_text("litgpt"));
  return table;
}

[[noreturn]] void not_transformers(const std::string& path,
                                   const std::string& why) {
  throw unfaithful_error({path, {}},
                         "no model of transformers that is known computes "
                         "what this one does: {}",
                         why)
      .with_hint("keep litgpt's names: --dialect keep");
}

}  // namespace

bool has_litgpt_names(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    return tensor.name.ends_with(".attn.qkv.weight") ||
           tensor.name.ends_with(".attn.attn.weight");
  });
}

bool is_litgpt_config(std::string_view text) {
  return text.find("n_embd:") != text.npos &&
         text.find("mlp_class_name:") != text.npos;
}

Json litgpt_config(const std::string& text, const std::string& path) {
  const Json file = yaml_values(text, path);
  ToldScope scope(litgpt_table(), file);
  try {
    std::string unmet;
    if (Json told = told_config(scope, &unmet); !told.is_null()) return told;
    if (!unmet.empty()) not_transformers(path, unmet);
  } catch (const Error& error) {
    if (!error.where().path.empty()) throw;
    throw unfaithful_error({path, {}}, "{}", error.problem());
  }
  const auto shown = [&](const char* key) {
    return text::printable(scope.eval(key).dump());
  };
  not_transformers(
      path,
      fmt::format("the parts of \"{}\" are in none of them together ({}, {})",
                  shown("name"), shown("mlp_class_name"),
                  shown("norm_class_name")));
}

std::vector<std::string> unknown_litgpt_keys(const std::string& text,
                                             const std::string& path) {
  static const std::set<std::string> known = told_keys(litgpt_table());
  std::vector<std::string> unknown;
  const Json file = yaml_values(text, path);
  for (const auto& [key, value] : file.items())
    if (!known.contains(key) && truthy(value)) unknown.push_back(key);
  return unknown;
}

}  // namespace ckpt::families
