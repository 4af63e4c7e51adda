// SPDX-License-Identifier: Apache-2.0
#include "convert/config/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "convert/config/told.h"
#include "convert/config/yaml_values.h"
#include "formats/megatron/model/facts.h"
#include "lib/embedded.h"
#include "lib/pickle/config.h"
#include "lib/text/format.h"

namespace ckpt::families {

TrainerConfig::TrainerConfig(const std::string& name)
    : table_(Json::parse(embedded_text(name))),
      dialect_(name),
      owner_(table_.at("owner")),
      file_(table_.value("file", "")),
      object_(table_.value("object", "")) {}

const std::vector<TrainerConfig>& TrainerConfig::all() {
  static const std::vector<TrainerConfig> tables = [] {
    std::vector<TrainerConfig> made;
    for (const char* name :
         {"litgpt", "olmo_legacy", "internevo", "metaseq", "neox"})
      made.push_back(TrainerConfig(name));
    return made;
  }();
  return tables;
}

const TrainerConfig* TrainerConfig::of(std::string_view dialect) {
  const auto found = std::ranges::find(all(), dialect, &TrainerConfig::dialect);
  return found == all().end() ? nullptr : &*found;
}

const TrainerConfig* TrainerConfig::of_names(const Catalog& catalog) {
  for (const TrainerConfig& one : all())
    for (const Json& end : one.table_.at("names")) {
      const auto& text = end.get_ref<const std::string&>();
      for (const Tensor& tensor : catalog.tensors)
        if (tensor.name.ends_with(text)) return &one;
    }
  return nullptr;
}

std::vector<std::string> trainer_config_objects() {
  std::vector<std::string> names;
  for (const char* dialect : {"internevo", "metaseq"})
    names.push_back(TrainerConfig::of(dialect)->object());
  return names;
}

Json TrainerConfig::numbers_of(const std::string& text,
                               const std::string& path) const {
  for (const Json& mark : table_.at("marks"))
    if (text.find(mark.get<std::string>() + ":") == text.npos) return nullptr;
  const Json all = yaml_values(text, path);
  const auto at = table_.find("at");
  if (at == table_.end()) return all;
  return all.is_object() ? all.value(at->get<std::string>(), Json()) : Json();
}

Json TrainerConfig::numbers_in(const pickle::Document& document,
                               pickle::Id value) const {
  const auto plain = [&](pickle::Id id) {
    const pickle::Id dict = megatron::args_dict(document, id);
    return dict == pickle::kNoId ? id : dict;
  };
  pickle::Id at = plain(value);
  if (const auto inside = table_.find("at"); inside != table_.end()) {
    if (!document.is(at, pickle::Type::kDict)) return nullptr;
    at = document.find(at, inside->get<std::string>());
    if (at == pickle::kNoId) return nullptr;
    at = plain(at);
  }
  Json numbers = pickle::to_config(document, at);
  const bool ours =
      numbers.is_object() && !pickle::is_foreign(numbers) &&
      std::ranges::all_of(table_.at("marks"), [&](const Json& mark) {
        return numbers.contains(mark.get<std::string>());
      });
  return ours ? numbers : Json();
}

TrainerConfig::Said TrainerConfig::read(const Json& numbers,
                                        const Catalog& shapes,
                                        const std::string& path) const {
  const auto refuse = [&](const std::string& why) {
    throw unfaithful_error({path, {}},
                           "no model of transformers that is known computes "
                           "what this one does: {}",
                           why)
        .with_hint(fmt::format("keep {}'s names: --dialect keep", owner_));
  };
  ToldScope scope(table_, numbers, &shapes);
  try {
    std::string unmet;
    Json config = told_config(scope, &unmet);
    if (!unmet.empty()) refuse(unmet);
    if (!config.is_null()) {
      Said said{std::move(config),
                scope.made(table_.value("told", Json::object()))};
      if (!is_partial() && !is_whole(said.config))
        throw unfaithful_error({path, {}}, "does not say all of {}",
                               fmt::join(needs(), ", "));
      return said;
    }
  } catch (const Error& error) {
    if (!error.where().path.empty()) throw;
    throw unfaithful_error({path, {}}, "{}", error.problem());
  }
  std::string shown;
  for (const Json& key : table_.at("shown"))
    shown += (shown.empty() ? "" : ", ") + key.get<std::string>() + " " +
             scope.eval(key.get<std::string>()).dump();
  refuse(fmt::format("its parts are in none of them together ({})",
                     text::printable(shown)));
  return {};
}

std::map<std::string, std::string> TrainerConfig::told_by() const {
  return table_.value("told_by", std::map<std::string, std::string>());
}

std::vector<std::string> TrainerConfig::needs() const {
  return table_.value("needs", std::vector<std::string>());
}

bool TrainerConfig::is_partial() const {
  return table_.value("partial", false);
}

bool TrainerConfig::is_whole(const Json& config) const {
  return std::ranges::all_of(
      needs(), [&](const std::string& key) { return config.contains(key); });
}

std::vector<std::string> TrainerConfig::unknown(const Json& numbers) const {
  if (is_partial()) return {};
  const std::set<std::string> known = told_keys(table_);
  std::vector<std::string> keys;
  for (const auto& [key, value] : numbers.items())
    if (!known.contains(key) && truthy(value)) keys.push_back(key);
  return keys;
}

}  // namespace ckpt::families
