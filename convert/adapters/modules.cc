// SPDX-License-Identifier: Apache-2.0
#include "convert/adapters/modules.h"

#include <array>

#include "ckpt/error.h"
#include "convert/rules/ops.h"
#include "lib/text/number.h"

namespace ckpt::families {
namespace {

constexpr std::string_view kWeight = ".weight";

// Parts of a fused matrix, by the endings of transformers' names.
struct PartRow {
  std::string_view hf, bridge;
};
constexpr std::array<PartRow, 5> kParts = {{{".q_proj", "adapter_q"},
                                            {".k_proj", "adapter_k"},
                                            {".v_proj", "adapter_v"},
                                            {".gate_proj", "adapter_gate"},
                                            {".up_proj", "adapter_up"}}};

// The module of "….linear_fc1.weight", of an expert's "….linear_fc1.weight3";
// "" for what is no weight.
std::string module_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return {};
  const std::string_view last = name.substr(dot);
  if (!last.starts_with(kWeight)) return {};
  const std::string_view number = last.substr(kWeight.size());
  if (!number.empty() && !text::is_digits(number)) return {};
  return std::string(name.substr(0, dot));
}

// Why a module's adapter can't be converted; "" if it can.
std::string hindrance_of(const Instance& one) {
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
    if (!name.ends_with(kWeight) || bridge_part(module_of(name)).empty())
      return "Megatron-Bridge has no name for a part of its fused matrix";
  return {};
}

}  // namespace

std::string_view bridge_part(std::string_view hf) {
  for (const PartRow& part : kParts)
    if (hf.ends_with(part.hf)) return part.bridge;
  return {};
}

AdapterModules::AdapterModules(const Dialect& dialect, const Numbers& numbers) {
  for (Instance& one : instances(dialect, numbers)) {
    const std::string mcore = module_of(one.to);
    if (mcore.empty() || one.hf.empty()) continue;
    std::string why = hindrance_of(one);
    if (!why.empty()) {
      for (const std::string& name : one.hf) why_not_[module_of(name)] = why;
      why_not_[mcore] = std::move(why);
      continue;
    }
    AdapterModule module{.rule = {}, .mcore = mcore, .hf = {}};
    module.expert = mcore.find(".experts.") != mcore.npos;
    for (const std::string& name : one.hf) module.hf.push_back(module_of(name));
    module.rule = std::move(one);
    all_.push_back(std::move(module));
  }
  for (const AdapterModule& module : all_) {
    by_mcore_[module.mcore].push_back(&module);
    for (const std::string& name : module.hf) by_hf_[name] = &module;
  }
}

void AdapterModules::refuse(const Catalog& source,
                            const std::string& name) const {
  const auto why = why_not_.find(name);
  throw unfaithful_error(
      {source.path, name}, "this module's adapter has no counterpart: {}",
      why == why_not_.end() ? "the base model doesn't have this module"
                            : why->second)
      .with_hint(
          "add the adapter to its base instead: ckpt convert BASE DST "
          "--adapter DIR");
}

const AdapterModule& AdapterModules::of_hf(const Catalog& source,
                                           const std::string& name) const {
  const auto found = by_hf_.find(name);
  if (found == by_hf_.end()) refuse(source, name);
  if (found->second->expert)
    throw unfaithful_error({source.path, name},
                           "this module's adapter has no counterpart: "
                           "Megatron-Bridge has one adapter for all experts of "
                           "a rank")
        .with_hint(
            "add the adapter to its base instead: ckpt convert BASE DST "
            "--adapter DIR");
  return *found->second;
}

const std::vector<const AdapterModule*>& AdapterModules::of_mcore(
    const Catalog& source, const std::string& name) const {
  const auto found = by_mcore_.find(name);
  if (found == by_mcore_.end()) refuse(source, name);
  return found->second;
}

}  // namespace ckpt::families
