// SPDX-License-Identifier: Apache-2.0
#include "convert/adapters/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/config/gguf.h"
#include "convert/rules/instances.h"
#include "convert/rules/ops.h"
#include "formats/peft/adapter.h"
#include "formats/peft/names.h"
#include "lib/text/format.h"

namespace ckpt::families {
namespace {

constexpr std::string_view kOfWeight = ".weight";

// True if a row of the weight stays a row of it, so that those of lora_B can be
// put in its order.
bool moves_rows(const Rule& rule) {
  return rule.hf.size() == 1 && rule.each.empty() && !rule.alias &&
         std::ranges::all_of(rule.ops, [](const Op& op) {
           return op.name == "rope_interleave";
         });
}

class ToGguf {
 public:
  ToGguf(PeftForm form, const AdapterBase& base)
      : form_(std::move(form)),
        base_(base),
        dialect_(*base.family->dialect(kGguf)),
        numbers_(base.family, dialect_, "hf", base.values.values,
                 base.values.source, base.set),
        all_(instances(dialect_, numbers_)) {
    for (const Instance& one : all_)
      for (const std::string& name : one.hf) by_hf_.emplace(name, &one);
  }

  Catalog run() {
    leave_base_out();
    check_kind();
    const double alpha = common_alpha();
    Catalog& adapter = form_.catalog;
    std::vector<Tensor> made;
    made.reserve(adapter.tensors.size());
    for (const Tensor& tensor : adapter.tensors) made.push_back(put(tensor));
    adapter.tensors = std::move(made);
    // What adapter_config.json says is in the metadata, or it was refused.
    adapter.sidecars.clear();
    add_gguf_adapter(base_.values.values.value("model_type", std::string()),
                     alpha, adapter);
    return std::move(adapter);
  }

 private:
  [[noreturn]] void refuse(const std::string& tensor,
                           const std::string& why) const {
    throw unfaithful_error({form_.catalog.path, tensor},
                           "llama.cpp's adapters have no place for this: {}",
                           why)
        .with_hint(
            "add it to its base: ckpt convert BASE DST --to gguf "
            "--adapter " +
            form_.catalog.path);
  }

  // peft saves an embedding beside its factors as it was before them.
  void leave_base_out() {
    Catalog& adapter = form_.catalog;
    const size_t count =
        std::erase_if(adapter.tensors, [](const Tensor& tensor) {
          return peft::without_wrap(tensor.name).has_value();
        });
    if (count != 0)
      adapter.problems.push_back(
          warning("frozen_base", {adapter.path, {}},
                  "{} of the base, saved beside their factors, are left out: "
                  "llama.cpp adds these to the weights of its own base",
                  text::counted(count, "weight")));
  }

  void check_kind() const {
    const peft::Config& config = form_.config;
    if (config.type != "LORA") refuse({}, peft::describe(config));
    if (config.dora) refuse({}, "magnitudes of rows (DoRA)");
    for (const Tensor& tensor : form_.catalog.tensors) {
      const auto part = peft::part_of(tensor.name);
      if (!part) refuse(tensor.name, "a whole tensor of the base");
      if (part->role != peft::Role::kA && part->role != peft::Role::kB)
        refuse(tensor.name, "it is neither lora_A nor lora_B");
      if (tensor.shape.size() != 2)
        refuse(tensor.name, "its shape is " + to_string(tensor.shape));
    }
  }

  // llama.cpp scales each pair by alpha / its rank.
  double alpha_of_pair(const peft::Part& part, const Tensor& b) const {
    const double alpha = peft::alpha_of(form_.config, part.module);
    return form_.config.rslora
               ? alpha * std::sqrt(static_cast<double>(b.shape[1]))
               : alpha;
  }

  double common_alpha() const {
    std::optional<double> alpha;
    std::string first;
    for (const Tensor& tensor : form_.catalog.tensors) {
      const auto part = peft::part_of(tensor.name);
      if (part->role != peft::Role::kB) continue;
      const double own = alpha_of_pair(*part, tensor);
      if (!alpha) {
        alpha = own;
        first = part->module;
      } else if (*alpha != own) {
        refuse(tensor.name, fmt::format("its alpha is {:g}, that of {} is "
                                        "{:g}, and a file has one",
                                        own, first, *alpha));
      }
    }
    if (!alpha) refuse({}, "it has no factors");
    // Zero is no alpha there, and the scale then one.
    if (*alpha == 0) refuse({}, "its alpha is 0");
    return *alpha;
  }

  const Instance& rule_for(const Tensor& tensor, const peft::Part& part) const {
    const std::string weight =
        base_.family->normal_name(part.module + std::string(kOfWeight));
    const auto found = by_hf_.find(weight);
    if (found == by_hf_.end())
      refuse(tensor.name, fmt::format("a base of this configuration has no {} "
                                      "in llama.cpp's names",
                                      weight));
    const Instance& one = *found->second;
    if (!moves_rows(*one.rule))
      refuse(tensor.name,
             fmt::format("{} is a part of {}, or lies otherwise there", weight,
                         one.to));
    return one;
  }

  Tensor put(const Tensor& tensor) {
    const auto part = peft::part_of(tensor.name);
    const Instance& one = rule_for(tensor, *part);
    const bool a = part->role == peft::Role::kA;
    View view = View::of(tensor);
    if (a && one.to == "token_embd.weight") {
      view = view.permute({1, 0});  // a row for each token is looked up
    } else if (!a && !one.rule->ops.empty()) {
      try {
        view = forward(one, {view}, numbers_, form_.catalog, tensor.dtype);
      } catch (const Error& error) {
        refuse(tensor.name, error.problem());
      }
    }
    Tensor made = tensor;
    view.into(made, kAnyPieces);
    made.name = one.to + (a ? ".lora_a" : ".lora_b");
    made.tp = {};
    made.tie = 0;
    return made;
  }

  PeftForm form_;
  const AdapterBase& base_;
  const Dialect& dialect_;
  const Numbers numbers_;
  const std::vector<Instance> all_;
  std::map<std::string, const Instance*, std::less<>> by_hf_;
};

}  // namespace

Catalog adapter_in_gguf(PeftForm form, const AdapterBase& base) {
  if (!base.family || !base.family->dialect(kGguf))
    throw unfaithful_error({form.catalog.path, {}},
                           "no architecture of llama.cpp is known for the "
                           "base model")
        .with_hint("docs/formats/gguf.md lists those that are");
  return ToGguf(std::move(form), base).run();
}

}  // namespace ckpt::families
