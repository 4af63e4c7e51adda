// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/rank_write.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/megatron/legacy/names.h"
#include "formats/megatron/state/job_args.h"
#include "lib/io/file.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

// args for another topology: changes what follows from it, and carries every
// other entry, known or not.

void set_if_there(Document& document, Id dict, const char* key, Id value) {
  if (document.find(dict, key) != kNoId) document.set(dict, key, value);
}

// Says how the pipeline is cut, for stages other than the source's.
void add_pipeline(const LegacyPlan& plan, std::vector<ArgChange>& changes) {
  const bool virtual_stages = plan.vpp > 1;
  uint64_t layers = 0;
  for (const auto& [stack, first] : plan.first_layer)
    if (first.size() > 1 && first[1] != UINT64_MAX) layers = first[1];
  if (!plan.notation.empty()) layers = 0;
  const auto if_virtual = [&](uint64_t value) {
    return virtual_stages ? std::optional<uint64_t>(value) : std::nullopt;
  };
  changes.push_back(
      {"virtual_pipeline_model_parallel_size", if_virtual(plan.vpp)});
  changes.push_back({"num_layers_per_virtual_pipeline_stage",
                     layers != 0 ? if_virtual(layers) : std::nullopt});
  changes.push_back({"num_virtual_stages_per_pipeline_rank", std::nullopt});
  changes.push_back({"decoder_first_pipeline_num_layers", plan.first_stage});
  changes.push_back({"decoder_last_pipeline_num_layers", plan.last_stage});
  changes.push_back(
      {"pipeline_model_parallel_layout", std::nullopt, plan.notation});
}

// Changes a copy of the source's args. `padded_vocab` 0: unchanged.
void update_legacy_args(Document& document, Id args, const Facts& facts,
                        const LegacyPlan& plan, const LegacyCoordinates& at,
                        uint64_t padded_vocab) {
  const Id dict = args_dict(document, args);
  if (dict == kNoId) return;
  const Topology& grid = plan.topology;
  std::vector<ArgChange> changes = topology_changes(facts, grid, padded_vocab);
  if (facts.etp) changes.push_back({"expert_tensor_parallel_size", plan.etp});
  changes.push_back({"transformer_pipeline_model_parallel_size", grid.pp});
  changes.push_back({"tensor_parallel_num_weight_shards", grid.tp});
  changes.push_back({"expert_tensor_parallel_num_weight_shards", plan.etp});
  if (plan.vocab_multiple != 0)
    changes.push_back({"make_vocab_size_divisible_by", plan.vocab_multiple});
  const uint64_t stage = uint64_t{grid.tp} * plan.cp * grid.dp;
  changes.push_back({"rank", at.rank + stage * at.pp});
  if (facts.pp.value_or(1) != grid.pp || plan.own_stages) {
    add_pipeline(plan, changes);
    for (const char* key : {"account_for_embedding_in_pipeline_split",
                            "account_for_loss_in_pipeline_split"})
      set_if_there(document, dict, key, document.add_bool(false));
  }
  set_args(document, args, changes);
  // Training itself switches it off where there is nothing to be parallel to.
  if (grid.tp == 1)
    set_if_there(document, dict, "sequence_parallel", document.add_bool(false));
  set_if_there(document, dict, "ckpt_format", document.add_string("torch"));
  set_if_there(document, dict, "use_dist_ckpt", document.add_bool(false));
}

// Sets a value in the dicts of `root`, at the place that a path names.
void set_nested(Document& document, Id root,
                const std::vector<std::string>& path, Id value) {
  Id at = root;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    Id next = document.find(at, path[i]);
    if (next == kNoId) {
      next = document.add_container(Type::kDict);
      document.set(at, path[i], next);
    }
    at = next;
  }
  document.set(at, path.back(), value);
}

}  // namespace

LegacyRankWriter::LegacyRankWriter(const Catalog& source, const Facts& facts,
                                   const LegacyPlan& plan, Target& target)
    : source_(source),
      facts_(facts),
      plan_(plan),
      target_(target),
      ours_(source.format == "megatron_legacy") {
  // The source's names stay in place.
  size_t index = 0;
  for (const Tensor& tensor : source.tensors) {
    if (tensor.kind == Kind::other) continue;
    if (tensor.kind == Kind::model) index_.emplace(tensor.name, index);
    ++index;
  }
}

Id LegacyRankWriter::add_value(LegacyFile& file, const LegacyKey& key,
                               const LegacyCoordinates& at) const {
  if (key.kind == KeyKind::kValue) {
    const Object* keys = find_object(source_, kModelObject);
    return file.document.import(*keys->document, key.value);
  }
  if (!plan_.same_ranks) return kNoId;
  const Object* states =
      find_object(source_, std::string(kStatesObject) + legacy_dir(plan_, at));
  if (!states || !states->document) return kNoId;
  const Id value = states->document->find(states->node, key.name);
  return value == kNoId ? kNoId
                        : file.document.import(*states->document, value);
}

// Adds a rank's part of a model tensor.
Id LegacyRankWriter::add_tensor(LegacyFile& file, const LegacyKey& key,
                                uint32_t v, const LegacyCoordinates& at,
                                std::vector<LegacyParam>& params) const {
  const size_t index = index_.at(key.tensor);
  const Tensor& tensor = target_.catalog.tensors[index];
  const bool expert = parse_legacy_name(key.name).is_expert;
  const uint64_t ranks = plan_.ranks_of(expert);
  const Shape local = part_shape(tensor.shape, tensor.tp, ranks);
  if (!is_legacy_buffer(key.name))
    params.push_back({.name = key.name,
                      .chunk = v,
                      .index = index,
                      .dtype = tensor.dtype,
                      .shape = local,
                      .numel = element_count(local).value_or(0),
                      .expert = expert,
                      .shared = plan_.tied && (is_word_embedding(key.name) ||
                                               key.tensor != key.name)});
  return file.add_part(tensor, index, tensor.tp, at.tp % ranks, ranks);
}

Id LegacyRankWriter::add_chunk(LegacyFile& file, uint32_t v,
                               const LegacyCoordinates& at,
                               std::vector<LegacyParam>& params) const {
  Document& document = file.document;
  const auto& keys = plan_.chunk(v, at.pp);
  const bool nested = std::ranges::any_of(
      keys, [](const LegacyKey& key) { return key.path.size() > 1; });
  const Id root = nested ? document.add_container(Type::kDict)
                         : torch::add_ordered_dict(document);
  const size_t chunk = size_t{v} * plan_.topology.pp + at.pp;
  const uint64_t each = plan_.experts / plan_.topology.ep;
  for (const LegacyKey& key : keys) {
    const LegacyName name = parse_legacy_name(key.name);
    if (name.expert && name.expert->value / each != at.ep) continue;
    const Id value = key.kind == KeyKind::kTensor
                         ? add_tensor(file, key, v, at, params)
                         : add_value(file, key, at);
    if (value == kNoId) continue;
    const uint64_t layer =
        name.layer ? name.layer->value - plan_.first_layer.at(name.stack)[chunk]
                   : 0;
    const uint64_t expert = name.expert ? name.expert->value % each : 0;
    set_nested(document, root,
               regroup(with_numbers(key.name, name, layer, expert), key.path),
               value);
  }
  return root;
}

Id LegacyRankWriter::add_args(Document& document, const Object& args,
                              const LegacyCoordinates& at) const {
  const Id copy = document.import(*args.document, args.node);
  uint64_t rows = 0;
  for (const Tensor& tensor : target_.catalog.tensors)
    if (tensor.kind == Kind::model && is_word_embedding(tensor.name) &&
        !tensor.shape.empty())
      rows = tensor.shape[0];
  update_legacy_args(document, copy, facts_, plan_, at, rows);
  if (!source_.format.starts_with("megatron_"))
    set_dtype_args(document, copy, target_.catalog);
  return copy;
}

// Adds values that the writer does not make itself.
void LegacyRankWriter::add_object(Document& document, Id root,
                                  const Object& object,
                                  const LegacyCoordinates& at) const {
  const std::string key = object.name.substr(0, object.name.find('.'));
  if (is_rank_key(key)) {
    const bool mine = object.name == key ||
                      object.name.ends_with("." + legacy_dir(plan_, at));
    if (plan_.same_ranks && mine)
      document.set(root, key, document.import(*object.document, object.node));
    return;
  }
  if (object.name == kDtypesObject || object.name.starts_with(kStatesObject) ||
      !carries_object(source_, object))
    return;
  document.set(root, object.name,
               document.import(*object.document, object.node));
}

void LegacyRankWriter::write(const LegacyStatesWriter& states,
                             const LegacyCoordinates& at,
                             const std::string& directory) {
  LegacyFile file(plan_.mixers);
  Document& document = file.document;
  const Id root = document.add_container(Type::kDict);
  std::vector<LegacyParam> params;
  bool version = false, model = false;
  const auto add_version = [&] {
    if (!version)
      document.set(root, "checkpoint_version", document.add_float(3));
    version = true;
  };
  const auto add_model = [&] {
    add_version();
    for (uint32_t v = 0; v < plan_.vpp && !model; ++v) {
      const Id chunk = add_chunk(file, v, at, params);
      document.set(root, plan_.vpp == 1 ? "model" : fmt::format("model{}", v),
                   chunk);
    }
    model = true;
  };
  for (const Object& object : source_.objects) {
    if (object.name == "args") {
      document.set(root, object.name, add_args(document, object, at));
    } else if (object.name == "checkpoint_version") {
      add_version();
    } else if (ours_ && object.name == kModelObject) {
      add_model();
    } else if (object.name == kOptimizerObject) {
      add_model();
      if (states.any())
        document.set(root, object.name, states.add_optimizer(file, params, at));
    } else {
      add_object(document, root, object, at);
    }
  }
  add_model();
  file.finish(target_, root, io::join(directory, "model_optim_rng.pt"));
  if (states.any())
    states.write_flat(target_, params, at,
                      io::join(directory, "distrib_optim.pt"));
}

bool carries_object(const Catalog& source, const Object& object) {
  if (!object.document) return false;
  if (source.format == "megatron_legacy") return true;
  for (const std::string_view name :
       {"args", "checkpoint_version", "iteration", "opt_param_scheduler",
        "num_floating_point_operations_so_far"})
    if (object.name == name) return true;
  return false;
}

}  // namespace ckpt::megatron
