// SPDX-License-Identifier: Apache-2.0
#include "formats/format.h"
#include "formats/runs/write/composing.h"

namespace ckpt::runs {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

void Composing::place_dcp(Nest& nest, const std::string& folder) {
  Layout layout;
  layout.format = "dcp";
  layout.topology.dp = ranks_;
  const Catalog catalog = nest.take();
  place(formats::find_format("dcp").writer->lay_out(catalog, layout), nest.of(),
        folder);
}

void Composing::add_sharded() {
  Nest nest(source_);
  for (const size_t t : model())
    nest.add({std::string(form_.model_key), source_.tensors[t].name}, t);
  const bool apart = form_.optimizer_at != form_.model_at;
  if (apart) place_dcp(nest, std::string(form_.model_at));
  Nest other(source_);
  Nest& into = apart ? other : nest;
  if (!adam_.states.empty()) add_optimizer(into);
  add_values(into);
  if (!apart || !adam_.states.empty())
    place_dcp(into, std::string(form_.optimizer_at));
}

void Composing::add_optimizer(Nest& nest) {
  const std::string key(form_.optimizer_key);
  for (const auto& [param, states] : adam_.states)
    for (const auto& [state, index] : states) {
      if (form_.grouping == Grouping::kEach)
        nest.add({key, "state." + param + "." + state}, index);
      else
        nest.add({key, "state", param, state}, index);
    }
  Document document;
  const Id list = document.add_container(Type::kList);
  for (const AdamGroup& group : groups_) {
    const auto options = options_of(document, group);
    if (form_.grouping == Grouping::kEach) {
      for (const std::string& param : group.params)
        for (const auto& [name, value] : options)
          nest.add_value({key, "param_groups." + param + "." + name}, document,
                         value);
      continue;
    }
    const Id dict = document.add_container(Type::kDict);
    for (const auto& [name, value] : options) document.set(dict, name, value);
    const Id params = document.add_container(Type::kList);
    for (const std::string& param : group.params)
      document.append(params, document.add_string(param));
    document.set(dict, "params", params);
    document.append(list, dict);
  }
  if (form_.grouping != Grouping::kEach)
    nest.add_value({key, "param_groups"}, document, list);
}

// An optimizer with a scheduler keeps in its groups what the scheduler starts
// from, and DCP asks for every key of the live groups.
std::vector<std::pair<std::string, Id>> Composing::options_of(
    Document& document, const AdamGroup& group) const {
  std::vector<std::pair<std::string, Id>> options;
  for (const auto& [name, value] : group.options)
    options.emplace_back(name, document.import(*adam_.document, value));
  if (option(group, "initial_lr") == kNoId && option(group, "lr") != kNoId)
    options.emplace_back("initial_lr",
                         document.import(*adam_.document, option(group, "lr")));
  return options;
}

// Values that have no file of their own: each at its place in the state dict.
void Composing::add_values(Nest& nest) {
  const auto add = [&](const auto& self, const Nest::Path& path,
                       const nlohmann::json& value) -> void {
    if (value.is_object()) {
      for (const auto& [key, one] : value.items()) {
        Nest::Path inner = path;
        inner.push_back(key);
        self(self, inner, one);
      }
      return;
    }
    Document document;
    if (const Id id = made(document, value); id != kNoId)
      nest.add_value(path, document, id);
  };
  for (const WrittenValue& row : writes_.values)
    if (row.file.empty()) add(add, {}, row.value);
}

}  // namespace ckpt::runs
