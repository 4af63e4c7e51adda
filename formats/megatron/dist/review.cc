// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/dist/review.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/canonical/adapter_rows.h"
#include "formats/megatron/canonical/review.h"
#include "formats/megatron/dist/zarr_scan.h"
#include "formats/megatron/model/grouped.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/parts.h"
#include "formats/megatron/model/restack.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/model/vocab.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/common.h"
#include "formats/megatron/state/optimizer.h"
#include "formats/megatron/state/param_groups.h"
#include "formats/megatron/state/rank_objects.h"
#include "formats/megatron/state/steps.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {
namespace {

constexpr char kDist[] = "megatron_torch_dist";
constexpr char kLegacy[] = "megatron_legacy";
constexpr char kFsdp[] = "megatron_fsdp_dtensor";

// Sets kinds and cuts for tensors of a source whose reader doesn't know
// Megatron, but whose names are Megatron's.
void recognise(Catalog& catalog, const Facts& facts) {
  for (Tensor& tensor : catalog.tensors) {
    const Key key = parse_key(tensor.name);
    if (!key.state.empty()) {
      tensor.kind = Kind::optim;
      tensor.param = key.model;
      tensor.state = key.state;
    }
    if ((key.rooted || key.tower) && tensor.tp.state == TpRule::State::kUnknown)
      tensor.tp = tp_rule(key, facts);
  }
}

void warn_of_names(Catalog& catalog) {
  const bool any =
      catalog.tensors.empty() ||
      std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
        return parse_key(tensor.name).rooted;
      });
  if (any) return;
  catalog.problems.push_back(warning(
      "foreign_names", {catalog.path, {}},
      "no tensor has a name of Megatron's: its models will not find them"));
}

// The files are global: any job loads them. But no model has a number of ranks
// that does not divide the heads evenly.
void warn_of_heads(Catalog& catalog, const Facts& facts, uint64_t tp) {
  if (tp <= 1) return;
  if (const auto said =
          unshared(catalog.tensors, {facts.mamba_groups, facts.delta_keys}, tp))
    catalog.problems.push_back(
        warning("heads", {catalog.path, {}},
                "{}: Megatron builds no such model; load it with a "
                "--tensor-model-parallel-size that divides them",
                *said));
  const uint64_t heads = facts.num_attention_heads.value_or(tp);
  const uint64_t groups = facts.num_query_groups.value_or(tp);
  const auto fits = [&](uint64_t ranks) {
    return heads % ranks == 0 &&
           (groups % ranks == 0 || (groups != 0 && ranks % groups == 0));
  };
  if (fits(tp)) return;
  std::vector<uint64_t> sizes;
  for (uint64_t ranks = 1; ranks <= 64; ++ranks)
    if (fits(ranks)) sizes.push_back(ranks);
  catalog.problems.push_back(
      warning("heads", {catalog.path, {}},
              "{} heads in {} query groups can't be shared by tp={}: "
              "Megatron builds no such model; load it with "
              "--tensor-model-parallel-size {}",
              heads, groups, tp, fmt::join(sizes, ", ")));
}

// What the legacy reader adds for its own writer is not a training value.
bool is_bookkeeping(const Object& object) {
  return object.name == kModelObject || object.name == kDtypesObject ||
         object.name.starts_with(kStatesObject);
}

bool has_state(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    return !parse_key(tensor.name).state.empty();
  });
}

// Views ranks' files as sharded keys. Returns how the optimizer is written.
std::string review_legacy(Catalog& catalog, const Facts& facts) {
  gather_steps(catalog);
  split_grouped_experts(catalog, facts);
  stack_modules(catalog, facts);
  const size_t states =
      std::erase_if(catalog.objects, [](const Object& object) {
        return object.name.starts_with(kStatesObject);
      });
  std::erase_if(catalog.objects, is_bookkeeping);
  const size_t random = std::erase_if(catalog.objects, [](const Object& o) {
    return o.name.starts_with("rng_state");
  });
  if (random != 0)
    catalog.problems.push_back(
        warning("object_left_out", {{}, "rng_state"},
                "is kept in another form here, and left out: load with "
                "--no-load-rng"));
  if (states != 0)
    catalog.problems.push_back(warning(
        "object_left_out", {{}, "_extra_state"},
        "scaling factors of FP8 layers are left out: training learns them "
        "again"));
  if (!has_state(catalog)) return {};
  if (facts.distributed_optimizer != true)
    catalog.problems.push_back(
        warning("optimizer_form", {},
                "the optimizer was not a distributed one; its state is "
                "written as {}, which the distributed optimizer loads "
                "(--use-distributed-optimizer)",
                kFullyReshardable));
  return std::string(kFullyReshardable);
}

// Rebuilds a dict whose values DCP stores one by one,
// "opt_param_scheduler.max_lr".
void nest_values(Catalog& catalog, const std::string& name) {
  auto document = std::make_shared<pickle::Document>();
  const pickle::Id dict = document->add_container(pickle::Type::kDict);
  const std::string prefix = name + ".";
  const size_t count = std::erase_if(catalog.objects, [&](const Object& one) {
    if (!one.name.starts_with(prefix)) return false;
    document->set(dict, document->add_string(one.name.substr(prefix.size())),
                  document->import(*one.document, one.node));
    return true;
  });
  if (count == 0) return;
  catalog.objects.push_back({.name = name, .document = document, .node = dict});
}

// Views Megatron-FSDP's modules as sharded keys. Its optimizer has options by
// parameter, not groups.
void review_fsdp(Catalog& catalog, const Facts& facts) {
  if (has_state(catalog))
    throw unfaithful_error(
        {catalog.path, {}},
        "optimizer state of Megatron-FSDP has its options by "
        "parameter (param_to_group_meta), which no other "
        "optimizer of Megatron's loads")
        .with_hint("--model-only writes the model");
  const size_t gone = std::erase_if(catalog.objects, [](const Object& object) {
    return object.name.starts_with("rng_state") ||
           object.name.starts_with("optimizer.");
  });
  if (gone != 0)
    catalog.problems.push_back(
        warning("object_left_out", {{}, "rng_state"},
                "{} values of random states and of the optimizer are kept "
                "in another form here, and left out: load with "
                "--no-load-rng --no-load-optim",
                gone));
  // They become entries of the common part, no longer items of their own.
  for (Object& object : catalog.objects) object.bytes = 0;
  nest_values(catalog, "opt_param_scheduler");
  join_gated(catalog);
  stack_modules(catalog, facts);
}

}  // namespace

namespace {

// A model of another dialect, under canonical names.
Catalog review_canonical(Catalog source, const Layout& layout) {
  arrange_adapters(source, layout);  // by its own args
  const Facts facts = settle_canonical(source, layout);
  stack_modules(source, facts);
  warn_of_heads(source, facts, layout.topology.tp);
  if (layout.topology.ep > 1 && facts.num_experts.value_or(0) != 0)
    chain_experts(source);
  return source;
}

}  // namespace

Catalog review_for_dist(Catalog source, const Layout& layout) {
  if (speaks_canonical(source))
    return review_canonical(std::move(source), layout);
  refuse_spelling(source, layout);
  if (source.format != kDist) load_objects(source);
  complete_object_names(source.objects);
  Facts facts = facts_of(source);
  infer_facts(source.tensors, facts);
  Layout wanted = layout;
  if (source.format == kLegacy) {
    const std::string form = review_legacy(source, facts);
    if (!form.empty()) wanted.options.try_emplace("optim", form);
  }
  if (source.format == kFsdp) review_fsdp(source, facts);
  recognise(source, facts);
  warn_of_names(source);
  warn_of_heads(source, facts, layout.topology.tp);
  convert_optimizer(source, wanted);
  arrange_adapters(source, layout);
  if (layout.topology.tp != 0 && !ask_vocabulary(source, facts, layout, false))
    pad_vocabulary(source, facts, layout.topology.tp);
  return source;
}

}  // namespace ckpt::megatron
