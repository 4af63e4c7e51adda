// SPDX-License-Identifier: Apache-2.0
#include "convert/rules/backbone.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "lib/text/number.h"
#include "models/wrapper.h"

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

namespace {

// PretrainedConfig.num_labels: as many as id2label has, and two without.
uint64_t labels(const Json& config) {
  const auto names = config.find("id2label");
  if (names != config.end() && names->is_object()) return names->size();
  const auto count = config.find("num_labels");
  return count != config.end() && count->is_number_unsigned()
             ? count->get<uint64_t>()
             : 2;
}

}  // namespace

std::optional<TaskHead> task_head(const Json& config) {
  // The Generic… classes in transformers' modeling_layers.py.
  const std::string_view name = class_of(config);
  if (name.ends_with("ForSequenceClassification"))
    return TaskHead{"score", false, labels(config)};
  if (name.ends_with("ForTokenClassification"))
    return TaskHead{"score", true, labels(config)};
  if (name.ends_with("ForQuestionAnswering"))
    return TaskHead{"qa_outputs", true, 2};  // a beginning and an end
  return std::nullopt;
}

bool is_left_aside(const Json& config, std::string_view name) {
  if (name.starts_with("v_head.")) return true;
  if (fmt::format(".{}", name).find(".mtp") != std::string::npos) return true;
  const auto number = [&](const char* key) -> uint64_t {
    const auto found = config.find(key);
    return found != config.end() && found->is_number_unsigned()
               ? found->get<uint64_t>()
               : 0;
  };
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  name.remove_prefix(kLayers.size());
  const auto layer = text::number<uint64_t>(name.substr(0, name.find('.')));
  const uint64_t own = number("num_hidden_layers");
  return layer && own != 0 && *layer >= own &&
         *layer - own < number("num_nextn_predict_layers");
}

std::string wrapper_of(const std::vector<Tensor>& tensors) {
  constexpr std::string_view kParallel = "module.";  // DataParallel, DDP
  const auto bare = [&](std::string name) {
    for (size_t before = 0; before != name.size();) {
      before = name.size();
      name = without_wrappers(std::move(name));
      if (name.starts_with(kParallel)) name.erase(0, kParallel.size());
    }
    return name;
  };
  const auto first = std::ranges::find(tensors, Kind::model, &Tensor::kind);
  if (first == tensors.end()) return {};
  const std::string rest = bare(first->name);
  if (!first->name.ends_with(rest)) return {};
  const std::string words =
      first->name.substr(0, first->name.size() - rest.size());
  return std::ranges::all_of(tensors,
                             [&](const Tensor& tensor) {
                               return tensor.kind != Kind::model ||
                                      tensor.name.starts_with(words);
                             })
             ? words
             : "";
}

std::optional<std::string> words_before(const std::vector<Tensor>& tensors,
                                        const std::vector<std::string>& words) {
  const auto first = std::ranges::find(tensors, Kind::model, &Tensor::kind);
  if (first == tensors.end() || words.empty()) return "";
  constexpr size_t kMost = 4;
  std::string before;
  for (size_t count = 0; count < kMost; ++count) {
    bool all = true;
    size_t fit = 0, others = 0;
    for (const Tensor& tensor : tensors) {
      if (tensor.kind != Kind::model) continue;
      all = all && tensor.name.starts_with(before);
      const size_t at = std::min(before.size(), tensor.name.size());
      const size_t dot =
          std::min(tensor.name.find('.', at), tensor.name.size());
      ++(std::ranges::count(words, tensor.name.substr(at, dot - at)) > 0
             ? fit
             : others);
    }
    if (!all) return std::nullopt;
    if (fit > others) return before;
    const size_t dot = first->name.find('.', before.size());
    if (dot == first->name.npos) return std::nullopt;
    before = first->name.substr(0, dot + 1);
  }
  return std::nullopt;
}

namespace {

constexpr size_t kMostWords = 2, kMostBeginnings = 32;

// The first words of a name, with their dots; "" and fewer where it has fewer.
std::vector<std::string_view> beginnings(std::string_view name) {
  std::vector<std::string_view> all{{}};
  for (size_t end = 0; all.size() <= kMostWords;) {
    end = name.find('.', end);
    if (end == name.npos) break;
    all.push_back(name.substr(0, ++end));
  }
  return all;
}

std::string instead(std::string_view name, const std::string& from,
                    const std::string& to) {
  if (!name.starts_with(from)) return std::string(name);
  return to + std::string(name.substr(from.size()));
}

// The names of the family's layers, without their numbers.
std::set<std::string> layers_of(const Family& family) {
  std::set<std::string> all;
  for (const Dialect& dialect : family.dialects())
    for (const Rule& rule : dialect.rules)
      for (const std::string& name : rule.hf)
        if (name.find('{') != name.npos) all.insert(numberless(name));
  return all;
}

// Few, without their numbers: layers are alike.
std::set<std::string> patterns_of(const std::vector<Tensor>& tensors) {
  std::set<std::string> names;
  for (const Tensor& tensor : tensors)
    if (tensor.kind == Kind::model) names.insert(numberless(tensor.name));
  return names;
}

}  // namespace

std::string Backbone::to_model(std::string_view name) const {
  // A head is beside the base model.
  if (here.empty() && name.starts_with("lm_head.")) return std::string(name);
  return instead(name, here, model);
}

std::string Backbone::to_here(std::string_view name) const {
  return instead(name, model, here);
}

bool has_layers_of(const Family& family, const std::vector<Tensor>& tensors) {
  const std::set<std::string> layers = layers_of(family);
  return std::ranges::any_of(patterns_of(tensors),
                             [&](const std::string& name) {
                               return layers.contains(family.normal_name(name));
                             });
}

Backbone find_backbone(const Json& config, const Family& family,
                       const std::vector<Tensor>& tensors) {
  const std::set<std::string> layers = layers_of(family);
  const std::set<std::string> names = patterns_of(tensors);
  std::set<std::string_view> models;
  for (const std::string& layer : layers)
    for (const std::string_view words : beginnings(layer)) models.insert(words);
  const auto known_by = [&](const Backbone& backbone) {
    return std::ranges::count_if(names, [&](const std::string& name) {
      return layers.contains(family.normal_name(backbone.to_model(name)));
    });
  };
  // The one that most names fit; of equals, that which takes the fewest words.
  // Where some fit as they are, the words of others are another module's.
  Backbone best;
  auto most = known_by(best);
  // A class with a head takes its base model's names, and no other's.
  const bool base = !is_other_class(config, family);
  if (base && most != 0) return {};
  if (base)
    std::erase_if(models, [](std::string_view words) {
      return std::ranges::count(words, '.') > 1;
    });
  const size_t taken = most == 0 && !base ? kMostWords : 0;
  for (size_t words = 0; words <= taken; ++words) {
    std::set<std::string_view> heres;
    for (const std::string& name : names)
      if (const auto here = beginnings(name); here.size() > words)
        heres.insert(here[words]);
    if (heres.size() > kMostBeginnings) continue;
    for (const std::string_view here : heres)
      for (const std::string_view model : models) {
        Backbone found{std::string(here), std::string(model)};
        const auto known = known_by(found);
        if (known <= most) continue;
        most = known;
        best = std::move(found);
      }
  }
  return best;
}

}  // namespace ckpt::families
