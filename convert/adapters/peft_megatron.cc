// SPDX-License-Identifier: Apache-2.0
#include "convert/adapters/peft_megatron.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ckpt/error.h"
#include "convert/adapters/modules.h"
#include "convert/rules/ops.h"
#include "formats/megatron/canonical/adapter_rows.h"
#include "formats/megatron/canonical/names.h"
#include "formats/peft/names.h"
#include "lib/text/number.h"

namespace ckpt::families {
namespace {

// "….linear_in.weight" of a module, ".weight3" of an expert's.
struct BridgeFactor {
  std::string module, part;
  bool in = false;
  std::optional<uint64_t> expert;
};

BridgeFactor bridge_factor(const Catalog& source, const Tensor& tensor) {
  constexpr std::string_view kIn = "linear_in", kOut = "linear_out";
  const std::string_view name = tensor.name;
  const size_t at = name.find(kBridgeAdapter), dot = name.rfind('.');
  if (at != name.npos && tensor.shape.size() == 2) {
    BridgeFactor factor{.module = std::string(name.substr(0, at)), .part = {}};
    std::string_view rest = name.substr(at + kBridgeAdapter.size());
    rest.remove_suffix(name.size() - dot);
    std::string_view number = name.substr(dot);
    const bool weight = number.starts_with(".weight");
    if (weight) number.remove_prefix(7);
    if (!number.empty()) factor.expert = text::number(number);
    factor.in = rest.ends_with(kIn);
    const bool known = factor.in || rest.ends_with(kOut);
    if (known) rest.remove_suffix(factor.in ? kIn.size() : kOut.size());
    if (rest.ends_with('.')) rest.remove_suffix(1);
    factor.part = rest;
    const bool part = rest.empty() || rest.starts_with("adapter_");
    if (known && part && weight && (number.empty() || factor.expert))
      return factor;
  }
  throw unfaithful_error({source.path, tensor.name},
                         "is not an adapter's linear_in or linear_out")
      .with_hint("--exclude leaves it out");
}

class FromMegatron {
 public:
  FromMegatron(const Catalog& source, const AdapterModules& modules,
               const Numbers& numbers, uint64_t ranks)
      : source_(source), modules_(modules), numbers_(numbers), ranks_(ranks) {}

  std::vector<Tensor> run() {
    for (const Tensor& tensor : source_.tensors) take(tensor);
    return std::move(made_);
  }

 private:
  void take(const Tensor& tensor) {
    const BridgeFactor factor = bridge_factor(source_, tensor);
    const auto& all = modules_.of_mcore(source_, factor.module);
    if (!factor.expert) {
      for (const AdapterModule* module : all) take(tensor, *module, factor);
      return;
    }
    if (*factor.expert >= all.size())
      throw unfaithful_error({source_.path, tensor.name},
                             "the base has {} experts", all.size());
    take(tensor, *all[*factor.expert], factor);
  }

  void take(const Tensor& tensor, const AdapterModule& module,
            const BridgeFactor& factor) {
    if (!factor.part.empty()) return take_part(tensor, module, factor);
    if (!module.fused()) return put(tensor, module.hf[0], factor.in);
    if (factor.in) {
      for (const std::string& name : module.hf) put(tensor, name, true);
      return;
    }
    const std::vector<View> views =
        backward(module.rule, View::of(tensor), numbers_);
    for (size_t i = 0; i < views.size(); ++i) {
      Tensor made = tensor;
      views[i].into(made, kAnyPieces);
      put(std::move(made), module.hf[i], false);
    }
  }

  void take_part(const Tensor& tensor, const AdapterModule& module,
                 const BridgeFactor& factor) {
    const auto hf = std::ranges::find(module.hf, factor.part, &bridge_part);
    if (hf == module.hf.end())
      throw unfaithful_error({source_.path, tensor.name},
                             "the base's module doesn't have this part");
    if (ranks_ == 1 || !megatron::is_halved_part(factor.part, factor.in))
      return put(tensor, *hf, factor.in);
    if (ranks_ == 0)
      throw unfaithful_error({source_.path, tensor.name},
                             "the order of its rows depends on the number of "
                             "tensor-parallel ranks, and neither args nor "
                             "run_config.yaml say it");
    megatron::check_halves(source_, tensor, ranks_);
    Tensor made = tensor;
    megatron::halved(View::of(tensor), ranks_, true).into(made, kAnyPieces);
    put(std::move(made), *hf, factor.in);
  }

  void put(Tensor tensor, const std::string& hf, bool in) {
    tensor.name =
        fmt::format("{}{}.lora_{}.weight", peft::kPrefix, hf, in ? 'A' : 'B');
    tensor.tp = {};
    tensor.tie = 0;
    made_.push_back(std::move(tensor));
  }

  const Catalog& source_;
  const AdapterModules& modules_;
  const Numbers& numbers_;
  const uint64_t ranks_;
  std::vector<Tensor> made_;
};

// One adapter for all experts has no axis of experts, and its key says one:
// until layers have numbers, it is called another module.
constexpr std::string_view kAxis = ".experts.experts.",
                           kEvery = ".every_expert.", kExperts = ".experts.";

void hide_shared(Catalog& source) {
  for (Tensor& tensor : source.tensors) {
    const size_t at = tensor.name.find(kAxis);
    const size_t axes = megatron::parse_key(tensor.name).layer_axis ? 1 : 0;
    if (at != tensor.name.npos && tensor.shape.size() == axes + 2)
      tensor.name.replace(at, kAxis.size(), kEvery);
  }
}

void show_shared(Catalog& source) {
  for (Tensor& tensor : source.tensors)
    if (const size_t at = tensor.name.find(kEvery); at != tensor.name.npos)
      tensor.name.replace(at, kEvery.size(), kExperts);
}

}  // namespace

std::vector<Tensor> peft_of_megatron(Catalog source, const AdapterBase& base) {
  if (!base.family || !base.family->dialect("mcore"))
    throw unfaithful_error({source.path, {}},
                           "the base model's family has no rules for "
                           "Megatron, whose names the adapter has")
        .with_hint(
            "`ckpt family list` shows those that have; --family NAME says "
            "which it is");
  if (!base.family->hf().text_type.empty())
    throw unfaithful_error({source.path, {}},
                           "the base model has a tower beside it: PEFT's names "
                           "are those of its modules, not of its files");
  const uint64_t ranks = megatron::adapter_ranks(source);
  for (Tensor& tensor : source.tensors)
    if (auto name = peft::bridge_name(tensor.name))
      tensor.name = std::move(*name);
  hide_shared(source);
  megatron::to_canonical(source);
  show_shared(source);
  const Dialect& dialect = *base.family->dialect("mcore");
  const Numbers numbers(base.family, dialect, "hf", base.values.values,
                        base.values.source, base.set);
  const AdapterModules modules(dialect, numbers);
  return FromMegatron(source, modules, numbers, ranks).run();
}

}  // namespace ckpt::families
