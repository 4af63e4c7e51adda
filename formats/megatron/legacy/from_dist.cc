// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/from_dist.h"

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/tree.h"
#include "formats/megatron/legacy/objects.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/module_order.h"
#include "formats/megatron/model/restack.h"
#include "formats/megatron/state/optimizer.h"
#include "formats/megatron/state/optimizer_groups.h"
#include "formats/megatron/state/steps.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

constexpr std::string_view kMain = "fp32_param";  // as in the legacy reader

bool is_half(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16;
}

bool has_halves(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::model && is_half(tensor.dtype);
  });
}

// The dict without an entry.
void remove(Document& document, Id& dict, std::string_view name) {
  if (document.find(dict, name) == kNoId) return;
  std::vector<Id> kept;
  const auto pairs = *document.as_pairs(dict);
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const Id key = pairs[i];
    if (document.is(key, Type::kString) && document.text(key) == name) continue;
    kept.insert(kept.end(), {key, pairs[i + 1]});
  }
  dict = document.add_container(Type::kDict, kept);
}

// The object "optimizer" in the form of ranks' files.
class Shell {
 public:
  Shell(const Catalog& catalog, const Object& object, bool distributed,
        bool counts_each)
      : distributed_(distributed),
        counts_each_(counts_each),
        halves_(has_halves(catalog)) {
    const Document& from = *object.document;
    std::unordered_map<Id, Id> inlined;
    if (catalog.skeleton && catalog.skeleton->document == object.document)
      for (const auto& [node, bytes] : catalog.skeleton->storages)
        if (const auto dtype = storage_dtype(from, node))
          inlined[node] = torch::add_inline_storage(*to_, *dtype, bytes);
    const auto parts = chained(from, object.node);
    std::vector<Id> all;
    for (const Id part : parts)
      all.push_back(optimizer(to_->import(from, part, inlined)));
    const bool one = parts.size() == 1 && parts[0] == object.node;
    root_ = one ? all[0] : to_->add_container(Type::kList, all);
    to_->set_root(root_);
  }

  Object object() const {
    return {
        .name = std::string(kOptimizerObject), .document = to_, .node = root_};
  }

 private:
  // Of small tensors: the loss scale.
  static std::optional<DType> storage_dtype(const Document& from, Id node) {
    const auto id = from.items(from.items(node)[0]);
    if (id.size() < 2 || !from.is(id[1], Type::kGlobal)) return std::nullopt;
    return dtype_from_storage(from.text(id[1]));
  }

  Id optimizer(Id made) {
    remove(*to_, made, "param_state_sharding_type");
    Id inner = to_->find(made, "optimizer");
    const bool bare = inner == kNoId;
    if (bare) inner = made;
    const Id list = to_->find(inner, "param_groups");
    if (!to_->is(list, Type::kList)) return made;
    const auto items = to_->items(list);
    std::vector<Id> groups(items.begin(), items.end());
    for (Id& group : groups) {
      remove(*to_, group, "params");
      if (counts_each_) remove(*to_, group, "step");
      // The writer lists the parameters of groups that have a list.
      if (!distributed_)
        to_->set(group, "params", to_->add_container(Type::kList));
    }
    to_->set(inner, "param_groups", to_->add_container(Type::kList, groups));
    if (distributed_) return made;
    to_->set(inner, "state", to_->add_container(Type::kDict));
    // For a model without 16-bit weights it is only the inner one.
    if (!halves_) return inner;
    to_->set(made, "fp32_from_fp16_params", to_->add_container(Type::kList));
    return made;
  }

  const bool distributed_;
  const bool counts_each_;
  const bool halves_;
  std::shared_ptr<Document> to_ = std::make_shared<Document>();
  Id root_ = kNoId;
};

// Optimizers number the parameters: the order says which is which.
void check_order(const Catalog& catalog, bool local) {
  const OrderStyle style{.fused_norms = !local, .grouped_experts = !local};
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model) continue;
    const Key key = parse_key(tensor.name);
    if (key.rooted && (!is_parameter(key) || order_of(key, style))) continue;
    throw unfaithful_error({catalog.path, text::printable(tensor.name)},
                           "where this parameter stands among others is not "
                           "known, and ranks' files number them")
        .with_hint("--model-only leaves the optimizer out");
  }
}

// Main weights have the legacy reader's name. Only a distributed optimizer has
// them for float32 parameters.
void settle_mains(Catalog& catalog, bool distributed, bool claimed) {
  std::unordered_map<std::string_view, const Tensor*> models;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) models.emplace(tensor.name, &tensor);
  std::vector<Tensor> kept;
  for (Tensor& tensor : catalog.tensors) {
    const auto model =
        tensor.state == kMain ? models.find(tensor.param) : models.end();
    const bool twice = model != models.end() && !distributed &&
                       model->second->dtype == DType::f32;
    if (twice)
      catalog.redundant.push_back(
          {tensor, std::nullopt, *model->second,
           "an optimizer that is not distributed has no main weights of "
           "float32 parameters"});
    else if (claimed && model != models.end())
      catalog.claims.push_back({tensor.name, tensor.param,
                                "the order of the flat buffer is inferred"});
    if (!twice) kept.push_back(tensor);
  }
  catalog.tensors = std::move(kept);
}

// The dtypes of flat buffers, which are their keys.
void add_dtypes(Catalog& catalog, const Facts& facts) {
  auto document = std::make_shared<Document>();
  std::vector<DType> seen;
  std::vector<Id> pairs;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model || !is_parameter(parse_key(tensor.name)) ||
        std::ranges::find(seen, tensor.dtype) != seen.end())
      continue;
    seen.push_back(tensor.dtype);
    const DType grad =
        facts.grads_in_float32.value_or(true) ? DType::f32 : tensor.dtype;
    pairs.push_back(document->add_container(
        Type::kTuple, {torch::add_dtype(*document, tensor.dtype),
                       torch::add_dtype(*document, grad)}));
  }
  const Id root = document->add_container(Type::kList, pairs);
  document->set_root(root);
  catalog.objects.push_back(
      {.name = std::string(kDtypesObject), .document = document, .node = root});
}

}  // namespace

void take_optimizer(Catalog& catalog, const Facts& facts) {
  const bool claimed = !catalog.claims.empty();
  const bool distributed =
      gather_optimizer(catalog, facts.distributed_optimizer);
  const auto object =
      std::ranges::find(catalog.objects, kOptimizerObject, &Object::name);
  if (object == catalog.objects.end() || !object->document)
    throw unfaithful_error({catalog.path, {}},
                           "there is optimizer state, but nothing about its "
                           "parameter groups")
        .with_hint("--model-only leaves the optimizer out");
  const auto steps = distributed ? std::nullopt : steps_of_each(catalog);
  *object = Shell(catalog, *object, distributed, steps.has_value()).object();
  name_modules(catalog, facts);
  if (steps) spread_steps(catalog, *steps);
  check_order(catalog, facts.local_spec == true);
  settle_mains(catalog, distributed, claimed);
  if (distributed) add_dtypes(catalog, facts);
  catalog.assumptions.push_back(
      distributed
          ? "optimizer: distrib_optim.pt, as of the distributed optimizer"
          : "optimizer: numbered parameters, as of one that is not "
            "distributed");
}

}  // namespace ckpt::megatron
