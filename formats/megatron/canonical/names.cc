// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/canonical/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "formats/megatron/model/forks.h"
#include "formats/megatron/model/grouped.h"
#include "formats/megatron/model/parts.h"
#include "formats/megatron/model/restack.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/model/spelling.h"
#include "formats/megatron/state/common.h"
#include "formats/megatron/state/rank_objects.h"

namespace ckpt::megatron {
namespace {

// Values of modules and of ranks, which are not parameters.
bool is_state(std::string_view name) {
  return name.ends_with("_extra_state") ||
         name.find("_extra_state.") != name.npos ||
         name.find("_extra_state/shard_") != name.npos ||
         name.starts_with("rng_state") ||
         name.starts_with("rerun_state_machine");
}

bool is_bookkeeping(std::string_view name) {
  return name == kModelObject || name == kDtypesObject ||
         name.starts_with(kStatesObject);
}

void drop_states(Catalog& catalog) {
  const size_t tensors = std::erase_if(
      catalog.tensors, [](const Tensor& t) { return is_state(t.name); });
  const size_t objects = std::erase_if(catalog.objects, [](const Object& o) {
    return is_state(o.name) || is_bookkeeping(o.name);
  });
  if (tensors + objects != 0)
    catalog.assumptions.push_back(fmt::format(
        "{} values of modules and ranks (_extra_state, rng_state) are not "
        "parameters, and left out",
        tensors + objects));
}

std::string state_name(const Tensor& tensor) {
  return fmt::format("optimizer.state.{}.{}", tensor.state, tensor.param);
}

// Renames the model's tensors and what belongs to a parameter.
void rename(Catalog& catalog) {
  const KeyList keys = keys_of(catalog.tensors);
  const Spelling spelling(catalog, keys);
  std::unordered_map<std::string, std::string> names;
  for (size_t i = 0; i < keys.size(); ++i) {
    Tensor& tensor = catalog.tensors[i];
    const std::string old = tensor.name;
    if (tensor.kind != Kind::optim) {
      tensor.name = spelling.canonical(old, keys[i]);
    } else if (!tensor.param.empty() && !is_bucket_key(old)) {
      tensor.param = spelling.canonical(tensor.param, parse_key(tensor.param));
      tensor.name = state_name(tensor);
    }
    names[old] = tensor.name;
  }
  std::erase_if(catalog.claims, [&](Claim& claim) {
    const auto exact = names.find(claim.exact);
    const auto rounded = names.find(claim.rounded);
    if (exact == names.end() || rounded == names.end()) return true;
    claim.exact = exact->second;
    claim.rounded = rounded->second;
    return false;
  });
}

void check_unique(const Catalog& catalog) {
  std::set<std::string_view> seen;
  for (const Tensor& tensor : catalog.tensors)
    if (!seen.insert(tensor.name).second)
      throw unfaithful_error({catalog.path, tensor.name},
                             "two tensors are spelled in a way that means "
                             "this one")
          .with_hint("--exclude leaves one of them out");
}

// True for the keys of a distributed checkpoint, which may have been carried
// into another container.
bool has_sharded_keys(const Catalog& catalog) {
  if (catalog.format == "megatron_torch_dist" ||
      catalog.format == "megatron_zarr")
    return true;
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    const Key key = parse_key(tensor.name);
    return tensor.kind == Kind::model && (key.rooted || key.tower) &&
           key.axes() != 0;
  });
}

}  // namespace

void to_canonical(Catalog& catalog) {
  if (catalog.format != "megatron_torch_dist") load_objects(catalog);
  Facts facts = facts_of(catalog);
  drop_states(catalog);
  if (has_sharded_keys(catalog)) {
    join_gated(catalog);
    number_layers(catalog);
    join_parts(catalog);
    catalog.claims.clear();
  } else if (catalog.format == "megatron_fsdp_dtensor") {
    join_gated(catalog);
  }
  rename(catalog);
  arrange_fork(catalog, facts);
  split_grouped_experts(catalog, facts);
  check_unique(catalog);
  sort_modules(catalog, keys_of(catalog.tensors), false);
  catalog.dialect = "mcore";
}

bool is_canonical(std::string_view name, const Key& key) {
  if (key.tower)
    return key.prefix.empty() && key.state.empty() && key.axes() == 0;
  if (!key.rooted || !key.prefix.empty() || !key.state.empty() ||
      key.axes() != 0 || place_of(key) == Where::kAnywhere)
    return false;
  for (const std::string_view other :
       {".local_experts.", ".experts.experts.", ".transformer_layer.",
        ".experts.weight"})
    if (name.find(other) != name.npos) return false;
  if (is_state(name) || name.ends_with("_w") || name.ends_with("_v"))
    return false;
  if (part_key(name) || name.find("mixer.conv1d_") != name.npos) return false;
  Facts facts;
  facts.gated = true;  // known either way
  return tp_rule(key, facts).state != TpRule::State::kUnknown;
}

std::set<std::string> not_canonical(const Catalog& catalog,
                                    const KeyList& keys) {
  const Spelling spelling(catalog, keys);
  std::set<std::string> names;
  for (size_t i = 0; i < keys.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    if (tensor.kind == Kind::model &&
        (!is_canonical(tensor.name, keys[i]) ||
         spelling.canonical(tensor.name, keys[i]) != tensor.name))
      names.insert(tensor.name);
  }
  return names;
}

}  // namespace ckpt::megatron
