// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/neox.h"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "formats/fairseq2/model_yaml.h"
#include "lib/embedded.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "nlohmann/json.hpp"

namespace ckpt::deepspeed {
namespace {

using families::Config;
constexpr uint64_t kMostYaml = uint64_t{16} << 20;
using text::printable;

// "2.attention.dense.weight", "sequential.2.attention.dense.weight"
struct LayerName {
  uint64_t layer = 0;
  std::string_view rest;  // "attention.dense.weight"
};

std::optional<LayerName> parse_layer_name(std::string_view name) {
  constexpr std::string_view kSequential = "sequential.";
  if (name.starts_with(kSequential)) name.remove_prefix(kSequential.size());
  const auto number = text::take_number(name, UINT32_MAX);
  if (!number || !name.starts_with('.')) return std::nullopt;
  return LayerName{*number, name.substr(1)};
}

// All names of rank 0.
template <class Visit>
void each_name(const Layers& layers, const ModelRank& first, Visit visit) {
  for (const auto& [number, slices] : layers)
    for (const auto& [name, ref] : slices.ranks.front()) visit(name);
  for (const auto& [name, ref] : first.module) visit(name);
  for (const auto& group : first.groups)
    for (const NamedShape& one : group) visit(one.name);
}

bool is_listed(const char* list, std::string_view name) {
  static const auto table =
      nlohmann::json::parse(families::embedded_text("neox")).at("slices");
  return std::ranges::any_of(table.at(list), [&](const auto& one) {
    return one.template get_ref<const std::string&>() == name;
  });
}

bool is_yaml(const std::string& name) {
  return name.ends_with(".yml") || name.ends_with(".yaml") ||
         name.ends_with(".json");
}

std::optional<bool> truth(const Config& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return std::nullopt;
  const bool* value = std::get_if<bool>(&found->second);
  return value ? std::optional(*value) : std::nullopt;
}

// [[["global"], 12], [["local", "global"], 6]]: the kinds of attention, "global
// local"; flat values have no lists of lists. "?" for another form.
std::optional<std::string> attention_kinds(const std::string& path) {
  try {
    const YAML::Node file = YAML::Load(io::read_file(path, kMostYaml));
    const YAML::Node with_hyphen = file["attention-config"];
    const YAML::Node list =
        with_hyphen ? with_hyphen : file["attention_config"];
    if (!list || list.IsNull()) return std::nullopt;
    std::set<std::string> kinds;
    for (const YAML::Node& part : list)
      for (const YAML::Node& kind : part[0]) kinds.insert(kind.Scalar());
    return kinds.empty() ? "?" : fmt::format("{}", fmt::join(kinds, " "));
  } catch (const YAML::Exception&) {
    return "?";
  }
}

// A module whose output is what the ranks' amount to.
Said copies(Merge merge) {
  return {.rule = TpRule::replicated(), .merge = merge};
}

}  // namespace

Config neox_config(const std::string& directory) {
  Config all;
  const std::string folder = io::join(directory, "configs");
  if (!io::is_directory(folder)) return all;
  for (const std::string& name : io::list_directory(folder)) {
    if (!is_yaml(name)) continue;
    const std::string path = io::join(folder, name);
    // It accepts no aliases, and few values: YAML's own tree is small, too.
    const Config flat = fairseq2::read_flat_yaml(path);
    if (auto kinds = attention_kinds(path))
      all["attention_config"] = std::move(*kinds);
    for (const auto& [key, value] : flat) {
      std::string word = key;
      std::ranges::replace(word, '-', '_');
      if (!all.emplace(word, value).second)
        throw input_error({path, {}},
                          "has {}, which another file of {} has as well",
                          printable(word), printable(folder));
    }
  }
  return all;
}

Neox::Neox(const std::string& directory, const ModelRank& first,
           const std::map<std::string, std::string>& set)
    : directory_(directory), config_(neox_config(directory)) {
  const pickle::Document& document = *first.container.document;
  const auto layers =
      document.as_int(document.find(first.find("args"), "num_layers"));
  if (layers && *layers > 0) layers_ = static_cast<uint64_t>(*layers);
  if (!config_.empty())
    parallel_residual_ = truth(config_, "gpt_j_residual").value_or(false);
  if (const auto given = set.find("gpt_j_residual"); given != set.end()) {
    if (given->second != "true" && given->second != "false")
      throw usage_error({}, "--set gpt_j_residual is true or false");
    parallel_residual_ = given->second == "true";
  }
  untied_ = truth(config_, "no_weight_tying").value_or(false);
}

bool Neox::is_one(const Layers& layers, const ModelRank& first) {
  bool found = false;
  each_name(layers, first, [&](const std::string& name) {
    const auto one = parse_layer_name(name);
    found = found || (one && one->rest == "attention.query_key_value.weight");
  });
  return found;
}

void Neox::name_tied(std::vector<Column>& columns) {
  constexpr std::string_view kTied = "tied_modules.embed.";
  const auto own = [&](const std::string& name) {
    return name.starts_with(kTied) ? "0." + name.substr(kTied.size()) : name;
  };
  for (Column& column : columns) {
    for (ModelRank& model : column.models)
      for (auto& group : model.groups)
        for (NamedShape& one : group) one.name = own(one.name);
    for (OptimRank& rank : column.optims)
      for (auto& map : rank.mappings) {
        std::map<std::string, Fragment> named;
        for (const auto& [name, at] : map) named.emplace(own(name), at);
        map = std::move(named);
      }
  }
}

std::optional<uint64_t> Neox::number(const char* key) const {
  return families::whole_number(config_, key);
}

Said Neox::rule(const std::string& name, const Shape& local,
                uint64_t tp) const {
  const auto one = parse_layer_name(name);
  if (!one) return {};
  if (is_listed("columns", one->rest)) return {.rule = TpRule::split(0)};
  if (is_listed("rows", one->rest)) return {.rule = TpRule::split(1)};
  if (is_listed("copies", one->rest)) return copies(Merge::kNone);
  if (is_listed("norms", one->rest)) return copies(Merge::kMean);
  if (is_listed("row_biases", one->rest)) return row_bias(name);
  if (is_listed("projections", one->rest)) return projection(local, tp);
  if (is_listed("inner", one->rest)) {
    const auto found = config_.find("activation");
    const bool gated = found != config_.end() &&
                       is_listed("gated", families::to_string(found->second));
    return {.rule = TpRule::split(0, gated ? 2 : 1)};
  }
  return {};
}

Said Neox::row_bias(const std::string& name) const {
  if (parallel_residual_)
    return copies(*parallel_residual_ ? Merge::kSum : Merge::kNone);
  throw unfaithful_error({directory_, printable(name)},
                         "is a bias of each tensor-parallel rank, and no "
                         "configs/*.yml says whether they are added up "
                         "(gpt-j-residual) or copies")
      .with_hint(
          "copy the run's configs folder beside its files; --set "
          "gpt_j_residual=true adds them up, =false takes them for copies");
}

// Queries, keys and values of each head; or all queries of a rank, then its
// keys, then its values, if there are fewer keys than queries.
Said Neox::projection(const Shape& local, uint64_t tp) const {
  const auto heads = number("num_attention_heads");
  const auto groups = number("num_kv_heads");
  if (!heads || !groups || *groups == 0 || *groups == *heads || local.empty())
    return {.rule = TpRule::split(0)};
  const uint64_t all = *heads + 2 * *groups;
  const uint64_t rows = local[0] * tp;
  if (rows % all != 0 || *heads % tp != 0 || *groups % tp != 0) return {};
  const uint64_t head = rows / all;
  return {
      .rule = TpRule::split(0),
      .parts = {*heads / tp * head, *groups / tp * head, *groups / tp * head}};
}

void Neox::check_layers(const Layers& layers,
                        const std::vector<Column>& columns) const {
  std::set<uint64_t> there;
  std::optional<uint64_t> norm;
  for (const Column& column : columns)
    each_name(layers, column.model(), [&](const std::string& name) {
      const auto one = parse_layer_name(name);
      if (!one) return;
      there.insert(one->layer);
      if (one->rest.starts_with("norm.")) norm = one->layer;
    });
  if (!layers_ && !norm)
    throw LostFile(
        input_error({directory_, {}}, "has no norm behind its last layer")
            .with_hint("fetch all files of the checkpoint"));
  const uint64_t count =
      layers_ ? *layers_ : *norm - std::min<uint64_t>(*norm, 3);
  const auto need = [&](uint64_t layer) {
    if (there.contains(layer)) return;
    throw LostFile(input_error({directory_, {}},
                               "module {} is missing (layer_{:02}-model_00-"
                               "model_states.pt): the model has {} layers, "
                               "from module 2 on",
                               layer, layer, count)
                       .with_hint("fetch all files of the checkpoint"));
  };
  need(0);
  for (uint64_t layer = 0; layer < count; ++layer) need(layer + 2);
  need(count + 3);
  if (untied_) need(count + 4);
}

}  // namespace ckpt::deepspeed
