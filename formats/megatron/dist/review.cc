// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/dist/review.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/canonical/adapter_rows.h"
#include "formats/megatron/canonical/review.h"
#include "formats/megatron/dist/catalog.h"
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
#include "formats/megatron/state/optimizer_common.h"
#include "formats/megatron/state/param_groups.h"
#include "formats/megatron/state/rank_objects.h"
#include "formats/megatron/state/steps.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {
namespace {

constexpr char kDist[] = "megatron_torch_dist";
constexpr char kLegacy[] = "megatron_legacy";
constexpr char kFsdp[] = "megatron_fsdp_dtensor";
constexpr char kDcp[] = "dcp";

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

// The values that DCP names one by one, "opt_param_scheduler.max_lr", of a
// container in the nest.
class Flattened {
 public:
  explicit Flattened(const Catalog& catalog)
      : document_(*catalog.skeleton->document) {
    for (const auto& [node, name] : catalog.skeleton->tensors)
      tensors_.insert(node);
    for (const Object& object : catalog.objects) names_.insert(object.name);
  }

  // Their names, in `names`. False if a tensor is among them.
  bool collect(pickle::Id id, const std::string& name,
               std::set<std::string>& names) const {
    if (tensors_.contains(id)) return false;
    if (names_.contains(name)) {
      names.insert(name);
      return true;
    }
    if (document_.is(id, pickle::Type::kList)) {
      const auto items = document_.items(id);
      for (size_t i = 0; i < items.size(); ++i)
        if (!collect(items[i], fmt::format("{}.{}", name, i), names))
          return false;
    } else if (document_.is(id, pickle::Type::kDict)) {
      const auto items = document_.items(id);
      for (size_t i = 0; i + 1 < items.size(); i += 2)
        if (!document_.is(items[i], pickle::Type::kString) ||
            !collect(items[i + 1],
                     fmt::format("{}.{}", name, document_.text(items[i])),
                     names))
          return false;
    }
    return true;
  }

 private:
  const pickle::Document& document_;
  std::unordered_set<pickle::Id> tensors_;
  std::unordered_set<std::string> names_;
};

// DCP makes texts of the numbers that chained optimizers and their parameters
// have as keys: "0", "1" … become numbers again, below `value`, too.
pickle::Id with_numbers(pickle::Document& document, pickle::Id value) {
  const auto pairs = document.as_pairs(value);
  if (!pairs || pairs->empty()) return value;
  std::vector<pickle::Id> made;
  bool counts = true, same = true;
  for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
    const pickle::Id key = (*pairs)[i];
    counts &= document.is(key, pickle::Type::kString) &&
              document.text(key) == std::to_string(i / 2);
    made.push_back(key);
    made.push_back(with_numbers(document, (*pairs)[i + 1]));
    same &= made.back() == (*pairs)[i + 1];
  }
  if (same && !counts) return value;
  if (counts)
    for (size_t i = 0; i < made.size(); i += 2)
      made[i] = document.add_int(static_cast<int64_t>(i / 2));
  return document.add_container(pickle::Type::kDict, made);
}

void number_optimizers(Catalog& catalog) {
  CommonEditor editor(catalog);
  const pickle::Id before = editor.find("optimizer");
  if (before == pickle::kNoId) return;
  const pickle::Id after = with_numbers(editor.document(), before);
  if (after == before) return;
  editor.set("optimizer", after);
  editor.finish();
}

// The containers that DCP took apart, whole again, where only values are in
// them; and objects of grids under Megatron's own
// names, "key.shard_0_2" -> "key/shard_0_2" (see dcp's writer).
void undo_flattening(Catalog& catalog) {
  for (Object& object : catalog.objects)
    if (const size_t dot = object.name.rfind(".shard_");
        dot != object.name.npos) {
      std::string name = object.name;
      name[dot] = '/';
      if (parse_object_key(name)) object.name = std::move(name);
    }
  if (!catalog.skeleton) return;
  const Skeleton& skeleton = *catalog.skeleton;
  const pickle::Document& document = *skeleton.document;
  const auto pairs = document.as_pairs(skeleton.root);
  if (!pairs) return;
  const Flattened flattened(catalog);
  for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
    const pickle::Id key = (*pairs)[i], value = (*pairs)[i + 1];
    if (!document.is(key, pickle::Type::kString)) continue;
    const std::string name(document.text(key));
    std::set<std::string> inside;
    if (!flattened.collect(value, name, inside) || inside.contains(name))
      continue;
    const auto is_inside = [&](const Object& one) {
      return inside.contains(one.name);
    };
    const auto first = std::ranges::find_if(catalog.objects, is_inside);
    if (first == catalog.objects.end()) continue;
    *first = {.name = name, .document = skeleton.document, .node = value};
    std::erase_if(catalog.objects, is_inside);
  }
  number_optimizers(catalog);
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
  if (source.format == kFsdp || source.format == kDcp) undo_flattening(source);
  recognise(source, facts);
  warn_of_names(source);
  warn_of_old_names(source);
  warn_of_heads(source, facts, layout.topology.tp);
  convert_optimizer(source, wanted);
  arrange_adapters(source, layout);
  if (layout.topology.tp != 0 && !ask_vocabulary(source, facts, layout, false))
    pad_vocabulary(source, facts, layout.topology.tp);
  return source;
}

}  // namespace ckpt::megatron
