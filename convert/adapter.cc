// SPDX-License-Identifier: Apache-2.0
#include "convert/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "ckpt/error.h"
#include "convert/adapter_config.h"
#include "convert/dialects.h"
#include "convert/instances.h"
#include "convert/mismatches.h"
#include "convert/ops.h"
#include "convert/values.h"
#include "formats/megatron/canonical/adapter_rows.h"
#include "formats/megatron/canonical/names.h"
#include "formats/peft/config.h"
#include "models/order.h"

namespace ckpt::families {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kAdapter = ".adapter.";
constexpr std::string_view kWeight = ".weight";
constexpr uint64_t kAnyPieces = UINT64_MAX;

// Parts of a fused matrix, by the endings of transformers' names.
struct Part {
  std::string_view hf, bridge;
};
constexpr std::array<Part, 5> kParts = {{{".q_proj", "adapter_q"},
                                         {".k_proj", "adapter_k"},
                                         {".v_proj", "adapter_v"},
                                         {".gate_proj", "adapter_gate"},
                                         {".up_proj", "adapter_up"}}};

std::string_view part_of(std::string_view hf) {
  for (const Part& part : kParts)
    if (hf.ends_with(part.hf)) return part.bridge;
  return {};
}

// A module of the base model in both dialects.
struct Module {
  Instance rule;
  std::string mcore;            // "decoder.layers.0.mlp.linear_fc1"
  std::vector<std::string> hf;  // "model.layers.0.mlp.gate_proj", …
  bool fused() const { return hf.size() > 1; }
};

std::string without_weight(const std::string& name) {
  return name.substr(0, name.size() - kWeight.size());
}

// Why a module's adapter can't be converted; "" if it can.
std::string hindrance_of(const Instance& one) {
  if (one.to.find(".experts.") != one.to.npos)
    return "Megatron-Bridge has one adapter for all experts of a rank";
  const auto& ops = one.rule->ops;
  const bool joined = ops.size() == 1 && one.rule->each.empty() &&
                      (ops[0].name == "qkv" || ops[0].name == "cat");
  if (one.hf.size() == 1 && is_copy(*one.rule))
    return one.to.ends_with(".linear_fc1.weight")
               ? "Megatron-Bridge cuts an adapter of linear_fc1 in two halves, "
                 "gate and up, and this model has no gate"
               : std::string();
  if (!joined) return "Megatron arranges the rows of its matrix anew";
  for (const std::string& name : one.hf)
    if (!name.ends_with(kWeight) || part_of(without_weight(name)).empty())
      return "Megatron-Bridge has no name for a part of its fused matrix";
  return {};
}

class Modules {
 public:
  Modules(const Dialect& dialect, const Numbers& numbers) {
    for (Instance& one : instances(dialect, numbers)) {
      if (!one.to.ends_with(kWeight) || one.hf.empty()) continue;
      std::string why = hindrance_of(one);
      if (!why.empty()) {
        for (const std::string& name : one.hf) why_not_[name] = why;
        why_not_[one.to] = std::move(why);
        continue;
      }
      Module module{.mcore = without_weight(one.to), .hf = {}};
      for (const std::string& name : one.hf)
        module.hf.push_back(without_weight(name));
      module.rule = std::move(one);
      all_.push_back(std::move(module));
    }
    for (const Module& module : all_) {
      by_mcore_[module.mcore] = &module;
      for (const std::string& name : module.hf) by_hf_[name] = &module;
    }
  }
  Modules(const Modules&) = delete;

  const Module& of_hf(const Catalog& source, const std::string& name) const {
    return find(source, by_hf_, name);
  }
  const Module& of_mcore(const Catalog& source, const std::string& name) const {
    return find(source, by_mcore_, name);
  }
  const std::vector<Module>& all() const { return all_; }

 private:
  using Index = std::map<std::string, const Module*, std::less<>>;
  const Module& find(const Catalog& source, const Index& index,
                     const std::string& name) const {
    if (const auto found = index.find(name); found != index.end())
      return *found->second;
    const auto why = why_not_.find(name + std::string(kWeight));
    throw unfaithful_error(
        {source.path, name}, "this module's adapter has no counterpart: {}",
        why == why_not_.end() ? "the base model doesn't have this module"
                              : why->second)
        .with_hint(
            "add the adapter to its base instead: ckpt convert BASE DST "
            "--adapter DIR");
  }

  std::vector<Module> all_;
  Index by_hf_, by_mcore_;
  std::map<std::string, std::string, std::less<>> why_not_;
};

// lora_A is linear_in; each is a matrix.
struct Factor {
  std::string module;  // PEFT's name, without base_model.model.
  bool in = false;
};

Factor factor_of(const Catalog& source, const Tensor& tensor) {
  std::string_view name = tensor.name;
  if (name.starts_with(kPrefix)) {
    name.remove_prefix(kPrefix.size());
    for (const std::string_view part : {".lora_A.", ".lora_B."}) {
      const size_t at = name.rfind(part);
      if (at == name.npos) continue;
      const std::string_view rest = name.substr(at + part.size());
      if ((rest == "weight" || rest == "default.weight") &&
          tensor.shape.size() == 2)
        return {std::string(name.substr(0, at)), part[6] == 'A'};
    }
  }
  throw unfaithful_error({source.path, tensor.name},
                         "Megatron-Bridge's adapters have lora_A and lora_B of "
                         "matrices, and no place for this")
      .with_hint(
          "add the adapter to its base: ckpt convert BASE DST --adapter DIR");
}

class ToMegatron {
 public:
  ToMegatron(Catalog& source, const Modules& modules,
             const TranslateOptions& options, uint64_t ranks)
      : source_(source), modules_(modules), options_(options), ranks_(ranks) {}

  void run() {
    const peft::Config config = config_for_bridge(source_);
    for (Tensor& tensor : source_.tensors) rename(tensor, config);
    check_complete();
    source_.assumptions.push_back(described(config));
  }

 private:
  void rename(Tensor& tensor, const peft::Config& config) {
    const Factor factor = factor_of(source_, tensor);
    const Module& module = modules_.of_hf(source_, factor.module);
    const uint64_t rank = tensor.shape[factor.in ? 0 : 1];
    if (rank != config.rank || peft::rank_of(config, factor.module) != rank ||
        peft::scale_of(config, factor.module, 1) !=
            static_cast<float>(config.alpha / static_cast<double>(rank)))
      throw unfaithful_error({source_.path, tensor.name},
                             "its rank ({}) or alpha is its own; "
                             "Megatron-Bridge has one of each: {} and {}",
                             rank, config.rank, config.alpha);
    const std::string_view part =
        module.fused() ? part_of(factor.module) : std::string_view();
    seen_.emplace(module.mcore, std::string(part), factor.in);
    tensor.name = fmt::format("{}{}{}{}{}.weight", module.mcore, kAdapter, part,
                              part.empty() ? "" : ".",
                              factor.in ? "linear_in" : "linear_out");
    tensor.tp = {};
    if (ranks_ < 2 || !megatron::is_halved_part(part, factor.in)) return;
    megatron::check_halves(source_, tensor, ranks_);
    megatron::halved(View::of(tensor), ranks_, false).into(tensor, kAnyPieces);
  }

  // Bridge's modules use all of their parts, so none may be missing.
  void check_complete() const {
    const Globs allowed(options_.allow_missing);
    for (const Module& module : modules_.all()) {
      std::vector<std::string> missing;
      size_t found = 0;
      for (const std::string& hf : module.hf)
        for (const bool in : {true, false}) {
          const std::string_view part =
              module.fused() ? part_of(hf) : std::string_view();
          if (seen_.contains({module.mcore, std::string(part), in}))
            ++found;
          else
            missing.push_back(hf + (in ? ".lora_A.weight" : ".lora_B.weight"));
        }
      if (found == 0 || missing.empty()) continue;
      if (std::ranges::all_of(missing, [&](const std::string& name) {
            return allowed.match(name);
          }))
        continue;
      throw unfaithful_error({source_.path, missing.front()},
                             "is missing: Megatron-Bridge's module {} needs "
                             "the adapters of all its parts",
                             module.mcore)
          .with_hint(
              "--allow-missing GLOB writes what is there, which other readers "
              "may load; or add the adapter to its base: --adapter DIR");
    }
  }

  static std::string described(const peft::Config& config) {
    return fmt::format(
        "Megatron-Bridge builds these modules with CanonicalLoRA(dim={}, "
        "alpha={:g}{})",
        config.rank, config.alpha, dropout_text(config));
  }

  Catalog& source_;
  const Modules& modules_;
  const TranslateOptions& options_;
  const uint64_t ranks_;
  std::set<std::tuple<std::string, std::string, bool>> seen_;
};

class ToPeft {
 public:
  ToPeft(Catalog& source, const Modules& modules, const Numbers& numbers,
         uint64_t ranks)
      : source_(source), modules_(modules), numbers_(numbers), ranks_(ranks) {}

  // The last names of the modules that have adapters, and their rank.
  AdapterModules run() {
    for (const Tensor& tensor : source_.tensors) take(tensor);
    source_.tensors = std::move(made_);
    return std::move(found_);
  }

 private:
  void take(const Tensor& tensor) {
    const size_t at = tensor.name.find(kAdapter);
    std::string part = at == tensor.name.npos
                           ? std::string()
                           : tensor.name.substr(at + kAdapter.size());
    bool in = false;
    if (part.ends_with("linear_in.weight"))
      in = true, part.resize(part.size() - 16);
    else if (part.ends_with("linear_out.weight"))
      part.resize(part.size() - 17);
    else
      part = "?";
    if (part.ends_with('.')) part.pop_back();
    const bool known =
        part.empty() ||
        std::ranges::find(kParts, part, &Part::bridge) != kParts.end();
    if (!known || tensor.shape.size() != 2)
      throw unfaithful_error({source_.path, tensor.name},
                             "is not an adapter's linear_in or linear_out")
          .with_hint("--exclude leaves it out");
    const Module& module =
        modules_.of_mcore(source_, tensor.name.substr(0, at));
    found_.ranks.insert(tensor.shape[in ? 0 : 1]);
    if (!part.empty()) return take_part(tensor, module, part, in);
    if (!module.fused()) return put(tensor, module.hf[0], in);
    if (in) {
      for (const std::string& name : module.hf) put(tensor, name, in);
      return;
    }
    const std::vector<View> views =
        backward(module.rule, View::of(tensor), numbers_);
    for (size_t i = 0; i < views.size(); ++i) {
      Tensor made = tensor;
      views[i].into(made);
      put(std::move(made), module.hf[i], in);
    }
  }

  void take_part(const Tensor& tensor, const Module& module,
                 const std::string& part, bool in) {
    const auto hf = std::ranges::find(module.hf, part, &part_of);
    if (hf == module.hf.end())
      throw unfaithful_error({source_.path, tensor.name},
                             "the base's module doesn't have this part");
    if (ranks_ == 1 || !megatron::is_halved_part(part, in))
      return put(tensor, *hf, in);
    if (ranks_ == 0)
      throw unfaithful_error({source_.path, tensor.name},
                             "the order of its rows depends on the number of "
                             "tensor-parallel ranks, and neither args nor "
                             "run_config.yaml say it");
    megatron::check_halves(source_, tensor, ranks_);
    Tensor made = tensor;
    megatron::halved(View::of(tensor), ranks_, true).into(made);
    put(std::move(made), *hf, in);
  }

  void put(Tensor tensor, const std::string& hf, bool in) {
    tensor.name =
        fmt::format("{}{}.lora_{}.weight", kPrefix, hf, in ? 'A' : 'B');
    tensor.tp = {};
    tensor.tie = 0;
    found_.names.insert(hf.substr(hf.rfind('.') + 1));
    made_.push_back(std::move(tensor));
  }

  Catalog& source_;
  const Modules& modules_;
  const Numbers& numbers_;
  const uint64_t ranks_;
  std::vector<Tensor> made_;
  AdapterModules found_;
};

void check_optimizer(const Catalog& source) {
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim)
      throw unfaithful_error({source.path, tensor.name},
                             "optimizer state can't be carried into another "
                             "dialect")
          .with_hint("--model-only converts the adapter alone");
}

}  // namespace

std::string_view adapter_dialect(const Catalog& catalog) {
  bool peft = false, bridge = false;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim) continue;
    const std::string_view name = tensor.name;
    if (name.starts_with(kPrefix) && name.find(".lora_") != name.npos)
      peft = true;
    else if (name.find(kAdapter) != name.npos &&
             (name.ends_with(".linear_in.weight") ||
              name.ends_with(".linear_out.weight")))
      bridge = true;
    else if (!name.ends_with("_extra_state"))
      if (!name.starts_with(kPrefix)) return {};
  }
  return peft == bridge ? "" : peft ? "hf" : "mcore";
}

Catalog translate_adapter(Catalog source, const TranslateOptions& options,
                          uint64_t ranks) {
  if (options.config_from.empty())
    throw unfaithful_error(
        {source.path, {}},
        "an adapter does not say its base's layers and heads")
        .with_hint("--config-from BASE names the base model's directory");
  locate(source);
  load_objects(source);
  check_optimizer(source);
  const Values values = values_of_file(options.config_from, "hf");
  const auto family = find_family(source, options);
  if (!family || !family->dialect("mcore"))
    throw unfaithful_error({options.config_from, {}},
                           "the base model's family has no rules for Megatron")
        .with_hint("`ckpt family list` shows those that have");
  if (!family->hf().text_type.empty())
    throw unfaithful_error({options.config_from, {}},
                           "the base model has a tower beside it: PEFT's names "
                           "are those of its modules, not of its files");
  const Numbers numbers(family, *family->dialect("mcore"), "hf", values.values,
                        values.source, options.set);
  const Modules modules(*family->dialect("mcore"), numbers);
  if (options.to == "mcore") {
    ToMegatron(source, modules, options, ranks).run();
    megatron::note_adapter_ranks(source, ranks);
  } else {
    const uint64_t own = megatron::adapter_ranks(source);
    megatron::to_canonical(source);
    write_peft_config(source, ToPeft(source, modules, numbers, own).run());
  }
  sort_tensors(source.tensors);
  source.skeleton.reset();
  source.family = family->name();
  source.dialect = options.to;
  source.assumptions.push_back(
      fmt::format("an adapter of family {}, in the names of {}", family->name(),
                  options.to == "hf" ? "PEFT" : "Megatron-Bridge"));
  return source;
}

}  // namespace ckpt::families
