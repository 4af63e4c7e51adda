// SPDX-License-Identifier: Apache-2.0
#include "convert/adapters/peft_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "convert/adapters/peft_megatron.h"
#include "convert/adapters/peft_places.h"
#include "convert/adapters/peft_trainers.h"
#include "convert/config/dialects.h"
#include "formats/peft/names.h"
#include "formats/peft/settings.h"
#include "lib/small_tensor.h"
#include "models/view.h"
#include "models/wrapper.h"

namespace ckpt::families {
namespace {

using peft::Modules;
using peft::Part;
using peft::Role;

std::string factor_name(const std::string& module, const Part& part) {
  const char* const letter = part.role == Role::kA ? "A" : "B";
  if (part.role == Role::kFactor)
    return fmt::format("{}{}.{}", peft::kPrefix, module, part.what);
  if (part.role == Role::kMagnitude)
    return fmt::format("{}{}.lora_magnitude_vector", peft::kPrefix, module);
  if (part.embedding)
    return fmt::format("{}{}.lora_embedding_{}", peft::kPrefix, module, letter);
  return fmt::format("{}{}.lora_{}.{}", peft::kPrefix, module, letter,
                     part.role == Role::kBias ? "bias" : "weight");
}

// How the refusal calls the file that would say it.
std::string_view file_that_says(const peft::Config& config) {
  if (config.dialect == "bridge") return "peft.alpha in run_config.yaml";
  if (config.dialect == "nemo") return "alpha in model_config.yaml";
  if (config.dialect == "gguf") return "key adapter.lora.alpha";
  if (config.dialect == "litgpt") return "lora_alpha in hyperparameters.yaml";
  return "adapter_config.json";
}

class Forming {
 public:
  Forming(Catalog source, const AdapterBase& base, std::optional<double> alpha)
      : base_(base) {
    auto config = peft::read_settings(source);
    if (!config)
      throw missing_error({source.path, {}},
                          "no adapter: none of its tensors has a name that "
                          "LoRA's factors have");
    form_.config = std::move(*config);
    // Before alpha is asked for: it would help nothing.
    if (!form_.config.hindrance.empty())
      throw unfaithful_error({source.path, {}},
                             "this adapter can't be added: {}",
                             form_.config.hindrance)
          .with_hint("the library that wrote it may be able to");
    dialect_ = peft::dialect_of(source);
    settle_alpha(source, alpha);
    load_objects(source);
    locate(source);
    form_.catalog = std::move(source);
  }

  PeftForm run() {
    std::vector<Tensor>& tensors = form_.catalog.tensors;
    std::erase_if(tensors, [](const Tensor& tensor) {
      return tensor.kind == Kind::optim ||
             tensor.name.find("_extra_state") != tensor.name.npos;
    });
    switch (dialect_->modules) {
      case Modules::kTransformers:
        take_named();
        break;
      case Modules::kFlat:
      case Modules::kAny:
        take_placed();
        break;
      case Modules::kMegatron:
        take_megatron();
        break;
      case Modules::kTorchtune:
      case Modules::kLitgpt:
      case Modules::kGguf:
        take_trainers();
        break;
    }
    tensors = std::move(made_);
    form_.catalog.skeleton.reset();
    form_.catalog.dialect = "hf";
    return std::move(form_);
  }

 private:
  void settle_alpha(const Catalog& source, std::optional<double> alpha) {
    peft::Config& config = form_.config;
    if (!alpha && !config.says_alpha)
      throw unfaithful_error(
          {source.path, {}},
          "a LoRA adapter in the names of {}, and nothing "
          "says its alpha: {}",
          config.owner,
          config.unsaid.empty()
              ? fmt::format("there is no {}", file_that_says(config))
              : config.unsaid)
          .with_hint(fmt::format(
              "--adapter-alpha N says it: the scale is N / rank, and the rank "
              "is {}",
              config.rank));
    if (!alpha) return;
    if (config.says_alpha && config.alpha != *alpha)
      form_.catalog.assumptions.push_back(
          fmt::format("alpha {} by --adapter-alpha, {} says {}", *alpha,
                      config.path, config.alpha));
    config.alpha = *alpha;
    config.says_alpha = given_ = true;
    config.alphas.clear();
  }

  [[noreturn]] void refuse(const Tensor& tensor, const std::string& why) const {
    throw unfaithful_error({form_.catalog.path, tensor.name}, "{}", why)
        .with_hint("--exclude leaves it out when the adapter is converted");
  }

  Part part_of(const Tensor& tensor) const {
    auto part = peft::part_of(tensor.name);
    if (!part || part->role == Role::kOther)
      refuse(tensor, part ? "it is a part of an adapter that is not a sum: " +
                                part->what
                          : "it is not known what this part of an adapter "
                            "does");
    return std::move(*part);
  }

  Tensor turned(Tensor tensor) const {
    if (!dialect_->turned || tensor.shape.size() != 2) return tensor;
    Tensor made = tensor;
    View::of(tensor).permute({1, 0}).into(made, kAnyPieces);
    return made;
  }

  void put(Tensor tensor, std::string name) {
    tensor.name = std::move(name);
    tensor.tp = {};
    tensor.tie = 0;
    made_.push_back(std::move(tensor));
  }

  // What is frozen in a live model is not a part of the adapter, but for what
  // modules_to_save and `bias` train.
  bool is_trained(std::string_view name) const {
    if (name.find(".modules_to_save.") != name.npos) return true;
    return name.ends_with(".bias") && form_.config.bias != "none";
  }

  void take_named() {
    const bool live =
        std::ranges::any_of(form_.catalog.tensors, [](const Tensor& tensor) {
          const auto part = peft::part_of(tensor.name);
          return part && part->live;
        });
    for (Tensor& tensor : form_.catalog.tensors) {
      const std::string whole = without_wrappers(tensor.name);
      const std::string name(peft::in_base_model(whole));
      const auto part = peft::part_of(whole);
      const bool renamed = part && (part->live || dialect_->name != "peft");
      if (renamed && part->role != Role::kOther)
        put(turned(std::move(tensor)), factor_name(part->module, *part));
      else if (part || !live || is_trained(name))
        put(std::move(tensor),
            std::string(peft::kPrefix) + peft::without_saved(name));
      else if (name.find(".original_module.") == name.npos)
        freeze(std::move(tensor), name);
    }
  }

  void freeze(Tensor tensor, const std::string& name) {
    tensor.name = peft::without_wrap(name).value_or(name);
    form_.frozen.push_back(std::move(tensor));
  }

  void take_trainers() {
    for (const Tensor& tensor : form_.catalog.tensors) {
      const Part part = part_of(tensor);
      for (Tensor& one :
           peft_of_trainer(form_.catalog, tensor, part, form_.config, base_))
        made_.push_back(std::move(one));
    }
  }

  void take_megatron() {
    Catalog& source = form_.catalog;
    const bool live =
        std::ranges::any_of(source.tensors, [](const Tensor& tensor) {
          return peft::without_wrap(tensor.name).has_value();
        });
    if (live)
      std::erase_if(source.tensors, [](const Tensor& tensor) {
        return !peft::part_of(tensor.name);
      });
    made_ = peft_of_megatron(source, base_);
    // Experts may have a rank of their own (normalize_moe_lora).
    for (const Tensor& tensor : made_) {
      const auto part = peft::part_of(tensor.name);
      const bool expert = tensor.name.find(".experts.") != tensor.name.npos;
      if (expert && part && part->role == Role::kB &&
          tensor.shape[1] != form_.config.rank)
        form_.config.own[part->module] = {tensor.shape[1], form_.config.alpha};
    }
  }

  // By the names of the base's modules.
  void take_placed() {
    std::map<std::string, std::set<std::string>> modules;
    std::vector<Part> parts;
    for (const Tensor& tensor : form_.catalog.tensors) {
      parts.push_back(part_of(tensor));
      modules[parts.back().component].insert(parts.back().module);
    }
    const auto places = places_of(modules);
    for (const auto& [component, names] : modules)
      if (!places.contains(component)) form_.elsewhere.push_back(component);
    std::map<std::string, double> alphas;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto there = places.find(parts[i].component);
      if (there == places.end()) continue;
      Tensor& tensor = form_.catalog.tensors[i];
      const std::string& module = there->second.at(parts[i].module);
      if (parts[i].role == Role::kAlpha)
        alphas[module] = read_alpha(tensor);
      else
        put(std::move(tensor), factor_name(module, parts[i]));
    }
    note_own(alphas);
  }

  std::map<std::string, Places> places_of(
      const std::map<std::string, std::set<std::string>>& modules) const {
    if (base_.model != nullptr)
      return find_places(form_.catalog, *base_.model, modules,
                         dialect_->modules == Modules::kFlat);
    if (dialect_->modules == Modules::kFlat || modules.size() > 1)
      throw unfaithful_error(
          {form_.catalog.path, {}},
          "an adapter in the names of {} for {}: PEFT's names are those of one "
          "model's modules",
          dialect_->owner,
          modules.size() > 1 ? "several models" : "a model of any names")
          .with_hint("add it to its base: ckpt convert BASE DST --adapter " +
                     form_.catalog.path);
    std::map<std::string, Places> same;
    for (const auto& [component, names] : modules)
      for (const std::string& name : names) same[component][name] = name;
    return same;
  }

  double read_alpha(const Tensor& tensor) const {
    const auto alpha = small_number(form_.catalog, tensor);
    if (!alpha)
      refuse(tensor, fmt::format("alpha is {} {}, one number is expected",
                                 name(tensor.dtype), to_string(tensor.shape)));
    return *alpha;
  }

  // Where LoKr has whole matrices alone, nothing is scaled.
  static uint64_t rank_shown(const Part& part, const Tensor& tensor) {
    if (part.role == Role::kB) return tensor.shape[1];
    return part.what.ends_with("_b") ? tensor.shape[0] : 0;
  }

  void note_own(const std::map<std::string, double>& alphas) {
    for (const Tensor& tensor : made_) {
      const auto part = peft::part_of(tensor.name);
      const bool factor = part && part->role == Role::kFactor;
      if (!part || (part->role != Role::kB && !factor) ||
          tensor.shape.size() < 2)
        continue;
      const uint64_t rank = rank_shown(*part, tensor);
      if (rank == 0) {
        form_.config.own.try_emplace(part->module, peft::Own{1, 1});
        continue;
      }
      const auto alpha = alphas.find(part->module);
      // Without one, a file of these names has the rank's.
      double own = static_cast<double>(rank);
      if (given_)
        own = form_.config.alpha;
      else if (alpha != alphas.end() && alpha->second != 0)
        own = alpha->second;
      else if (alphas.empty() && !form_.config.alpha_is_rank)
        own = peft::alpha_of(form_.config, part->module);
      form_.config.own[part->module] = {rank, own};
    }
  }

  const AdapterBase& base_;
  const peft::Dialect* dialect_ = nullptr;
  bool given_ = false;  // --adapter-alpha
  PeftForm form_;
  std::vector<Tensor> made_;
};

}  // namespace

AdapterBase base_of(const Catalog& model, const TranslateOptions& options) {
  AdapterBase base{.model = &model, .family = nullptr, .values = {}, .set = {}};
  base.values = values_of(model, "hf");
  if (base.values.source.empty() && !options.config_from.empty())
    base.values = values_of_file(options.config_from, "hf");
  base.family = find_family(model, options);
  base.set = options.set;
  return base;
}

AdapterBase base_of_config(const Catalog& adapter,
                           const TranslateOptions& options) {
  AdapterBase base{
      .model = nullptr, .family = nullptr, .values = {}, .set = options.set};
  if (options.config_from.empty()) return base;
  base.values = values_of_file(options.config_from, "hf");
  base.family = find_family(adapter, options);
  return base;
}

PeftForm in_peft_form(Catalog source, const AdapterBase& base,
                      std::optional<double> alpha) {
  return Forming(std::move(source), base, alpha).run();
}

std::string peft_config_text(const PeftForm& form) {
  const peft::Config& config = form.config;
  std::set<std::string> targets;
  Json ranks = Json::object(), alphas = Json::object();
  for (const Tensor& tensor : form.catalog.tensors) {
    const auto part = peft::part_of(tensor.name);
    if (!part || part->role != Role::kB) continue;
    targets.insert(part->module.substr(part->module.rfind('.') + 1));
    const uint64_t rank = peft::rank_of(config, part->module);
    const double alpha = peft::alpha_of(config, part->module);
    if (rank != config.rank) ranks[part->module] = rank;
    if (alpha != config.alpha) alphas[part->module] = alpha;
  }
  const Json base = config.base.empty() ? Json() : Json(config.base);
  const Json made{{"peft_type", "LORA"},
                  {"task_type", "CAUSAL_LM"},
                  {"base_model_name_or_path", base},
                  {"bias", config.bias},
                  {"fan_in_fan_out", config.fan_in_fan_out},
                  {"inference_mode", true},
                  {"r", config.rank},
                  {"lora_alpha", config.alpha},
                  {"lora_dropout", config.dropout},
                  {"use_rslora", config.rslora},
                  {"use_dora", config.dora},
                  {"rank_pattern", ranks},
                  {"alpha_pattern", alphas},
                  {"target_modules", targets}};
  return made.dump(2) + "\n";
}

}  // namespace ckpt::families
