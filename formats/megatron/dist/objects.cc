// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/dist/objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/state/common.h"

namespace ckpt::megatron {
namespace {

constexpr std::string_view kExtra = "._extra_state";

// The random number state has one object per tensor and pipeline rank, whatever
// the number of data-parallel ranks; the rerun state has one per rank of the
// job.
bool is_of_other_ranks(std::string_view key, const Topology& from,
                       const Topology& to) {
  if (key.ends_with("rng_state")) return from.tp != to.tp || from.pp != to.pp;
  return key.ends_with("rerun_state_machine_state") && from != to;
}

bool is_of_buffers(std::string_view key) {
  return key.find("optimizer.distributed.dp_group_idx_") != key.npos;
}

bool has_buckets(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    return is_bucket_key(tensor.name);
  });
}

}  // namespace

std::vector<const Object*> kept_objects(const Catalog& source,
                                        const Topology& topology,
                                        Target& target) {
  const bool buckets = has_buckets(source);
  std::vector<const Object*> kept;
  std::set<std::string, std::less<>> dropped;
  size_t of_buffers = 0;
  for (const Object& object : source.objects) {
    if (is_common(source, object)) continue;
    const auto key = parse_object_key(object.name);
    if (key && is_of_other_ranks(key->key, source.topology, topology)) {
      dropped.insert(std::string(key->key));
      continue;
    }
    if (key && is_of_buffers(key->key) && !buckets) {
      ++of_buffers;
      continue;
    }
    kept.push_back(&object);
  }
  for (const std::string& key : dropped)
    target.problems.push_back(warning(
        "object_left_out", {{}, key},
        "belongs to the ranks of {}; not written: load with {}",
        to_string(source.topology),
        key.ends_with("rng_state") ? "--no-load-rng" : "a fresh rerun state"));
  if (of_buffers != 0)
    target.assumptions.push_back(fmt::format(
        "{} objects about flat buffers are left out: the optimizer's state is "
        "written parameter by parameter",
        of_buffers));
  return kept;
}

namespace {

// Modules with an extra state, by the last component before the parameter.
constexpr std::string_view kLinears[] = {
    "linear_qkv",        "linear_proj",        "linear_fc1",
    "linear_fc2",        "linear_q_proj",      "linear_q_up_proj",
    "linear_kv_up_proj", "linear_q_down_proj", "linear_kv_down_proj",
    "linear_q",          "linear_kv"};
// Only in transformer_engine.
constexpr std::string_view kNorms[] = {"q_layernorm", "k_layernorm",
                                       "final_layernorm", "pre_mlp_layernorm"};

bool is_weight(std::string_view parameter) {
  return parameter == "weight" || parameter == "weight_w";
}

// GPTModel takes the state of its output layer out; models with a head of their
// own don't.
bool keeps_output_state(const KeyList& keys) {
  return std::ranges::any_of(
      keys, [](const Key& key) { return key.name.starts_with("lm_head."); });
}

// The grid of a module's objects: one for each layer and expert on an axis.
std::vector<uint64_t> grid_of(const Tensor& tensor, const Key& key) {
  std::vector<uint64_t> grid;
  for (uint32_t d = 0; d < key.axes() && d < tensor.shape.size(); ++d)
    grid.push_back(tensor.shape[d]);
  if (grid.empty()) grid.push_back(1);
  return grid;
}

// All offsets of a grid.
void add_grid(std::string_view module, const std::vector<uint64_t>& grid,
              std::vector<std::string>& names) {
  constexpr uint64_t kMost = uint64_t{1} << 20;
  uint64_t count = 1;
  for (const uint64_t extent : grid) {
    if (extent == 0) return;
    count = checked_mul(count, extent).value_or(kMost + 1);
    if (count > kMost)
      throw resource_error({{}, std::string(module)},
                           "more than {} objects of one module", kMost);
  }
  const std::string key = std::string(module) + std::string(kExtra);
  std::vector<uint64_t> at(grid.size(), 0);
  for (uint64_t i = 0; i < count; ++i) {
    names.push_back(object_key(key, at, grid));
    for (size_t d = grid.size(); d-- > 0 && ++at[d] == grid[d];) at[d] = 0;
  }
}

bool asks_for_state(std::string_view module, bool engine) {
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return std::ranges::find(kLinears, last) != std::end(kLinears) ||
         (engine && std::ranges::find(kNorms, last) != std::end(kNorms));
}

}  // namespace

std::vector<std::string> missing_extra_states(const Catalog& source,
                                              const KeyList& keys,
                                              const Facts& facts,
                                              Target& target) {
  std::vector<std::string> names;
  for (const Object& object : source.objects)
    if (object.name.find(kExtra) != std::string::npos) return names;
  const bool engine = facts.local_spec != true;
  const bool keeps_output = keeps_output_state(keys);
  std::set<std::string> outputs;
  for (size_t i = 0; i < keys.size(); ++i) {
    const Tensor& tensor = source.tensors[i];
    const Key& key = keys[i];
    if (!key.rooted || !key.state.empty()) continue;
    const size_t dot = tensor.name.rfind('.');
    if (dot == std::string::npos) continue;
    const std::string module = tensor.name.substr(0, dot);
    const std::string_view parameter =
        std::string_view(tensor.name).substr(dot + 1);
    const bool output = keeps_output && module.ends_with("output_layer");
    // BertModel's output layer has a bias alone: its weight is the embedding.
    if (!is_weight(parameter) && !(output && parameter == "bias")) continue;
    if (!output && !asks_for_state(module, engine)) continue;
    if (output && !outputs.insert(module).second) continue;
    const std::vector<uint64_t> grid = grid_of(tensor, key);
    add_grid(module, grid, names);
    constexpr std::string_view kProj = ".linear_proj";
    if (engine && module.ends_with(kProj))
      add_grid(
          module.substr(0, module.size() - kProj.size()) + ".core_attention",
          grid, names);
  }
  if (!names.empty())
    target.assumptions.push_back(fmt::format(
        "{} empty _extra_state objects are made, which Megatron's modules ask "
        "for",
        names.size()));
  return names;
}

}  // namespace ckpt::megatron
