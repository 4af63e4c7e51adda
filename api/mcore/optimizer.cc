// SPDX-License-Identifier: Apache-2.0
// The optimizer's state, sharded like the parameters that it belongs to
// (megatron-core: dist_checkpointing/optimizer.py).
#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "api/mcore/tree.h"
#include "lib/text/other_json.h"

namespace ckpt::mcore {
namespace {

constexpr char kState[] = "optimizer.state.";

State as_state(const ShardedParam& param) {
  return std::visit([](const auto& one) { return State(one); }, param);
}

State group_state(const std::string& options,
                  const std::vector<uint64_t>& numbers) {
  const auto json = text::parse_or_discard(options);
  if (!json.is_object())
    throw usage_error({{}, "param_groups"},
                      "a group's options are not a JSON "
                      "object");
  Dict group;
  for (const auto& [name, value] : json.items())
    group[name] = Json{value.dump()};
  group["params"] = LocalNonpersistentObject{nlohmann::json(numbers).dump()};
  return group;
}

}  // namespace

std::map<uint64_t, ShardedParam> get_param_id_to_sharded_param_map(
    const State& model, std::span<const TensorPtr> optimizer_params) {
  std::unordered_map<const TensorData*, uint64_t> ids;
  for (size_t i = 0; i < optimizer_params.size(); ++i)
    ids.emplace(optimizer_params[i].get(), i);
  std::map<uint64_t, ShardedParam> params;
  const auto take = [&](const auto& one) {
    const auto found = ids.find(one.data.get());
    if (one.data && found != ids.end())
      params.insert_or_assign(found->second, one);
  };
  walk_leaves(model, [&](const State& leaf) {
    if (const auto* tensor = leaf.as<ShardedTensor>()) take(*tensor);
    if (const auto* factory = leaf.as<ShardedTensorFactory>()) take(*factory);
  });
  return params;
}

ShardedParam make_sharded_optimizer_tensor(const ShardedParam& param,
                                           TensorPtr data,
                                           const std::string& prefix) {
  if (const auto* factory = std::get_if<ShardedTensorFactory>(&param)) {
    ShardedTensorFactory state = *factory;
    state.key = prefix + "." + state.key;
    state.data = std::move(data);
    return state;
  }
  ShardedTensor state = std::get<ShardedTensor>(param);
  state.key = prefix + "." + state.key;
  if (!data) throw usage_error({{}, state.key}, "has no data");
  if (data->shape != state.local_shape)
    throw usage_error({{}, state.key}, "has the shape {}, its parameter {}",
                      to_string(data->shape), to_string(state.local_shape));
  state.dtype = data->dtype;
  state.data = std::move(data);
  state.validate();
  return state;
}

State optim_state_to_sharding_state(
    const OptimizerState& optimizer,
    const std::map<uint64_t, ShardedParam>& params,
    std::span<const std::string> exclude) {
  Dict state;
  for (const auto& [number, tensors] : optimizer.state) {
    Dict& sharded = *(state[std::to_string(number)] = Dict{}).as<Dict>();
    for (const auto& [name, data] : tensors) {
      if (std::ranges::find(exclude, name) != exclude.end()) continue;
      const auto param = params.find(number);
      if (param == params.end())
        throw usage_error({{}, name},
                          "parameter {} of the optimizer is not a sharded "
                          "parameter of the model",
                          number);
      sharded[name] = as_state(
          make_sharded_optimizer_tensor(param->second, data, kState + name));
    }
  }
  List groups;
  for (const auto& [options, numbers] : optimizer.groups)
    groups.push_back(group_state(options, numbers));
  Dict all;
  all["state"] = std::move(state);
  all["param_groups"] = std::move(groups);
  return all;
}

}  // namespace ckpt::mcore
