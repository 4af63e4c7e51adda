// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/args.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

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

}  // namespace

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

}  // namespace ckpt::megatron
