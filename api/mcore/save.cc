// SPDX-License-Identifier: Apache-2.0
// Turns a sharded state dict into what one rank contributes to a save
// (megatron-core: serialization.py, save).
#include <nlohmann/json.hpp>
#include <optional>

#include "api/mcore/tree.h"

namespace ckpt::mcore {
namespace {

using json = nlohmann::ordered_json;

ckpt::ShardedTensor part_of(const ShardedTensor& tensor) {
  tensor.validate();
  if (tensor.flattened_range)
    throw unfaithful_error({{}, tensor.key},
                           "is a flattened range of a tensor, which "
                           "megatron-core refuses since 0.16")
        .with_hint("save it in boxes of its own shape");
  if (!tensor.data) throw usage_error({{}, tensor.key}, "has no data");
  return {.name = tensor.key,
          .dtype = tensor.dtype,
          .shape = tensor.global_shape,
          .box = tensor.box(),
          .bytes = tensor.data->bytes,
          .replica = tensor.replica};
}

class Splitter {
 public:
  // The common values in this part; nothing if all of it is sharded or stays
  // here.
  std::optional<json> split(const State& state, const std::string& path) {
    if (const auto* dict = state.as<Dict>()) return split_dict(*dict, path);
    if (const auto* list = state.as<List>()) return split_list(*list, path);
    if (const auto* plain = state.as<Json>()) return parse(plain->text, path);
    if (const auto* tensor = state.as<ShardedTensor>()) {
      rank_.tensors.push_back(part_of(*tensor));
      owners_->push_back(tensor->data);
    } else if (const auto* object = state.as<ShardedObject>()) {
      rank_.objects.push_back(*object);
    } else if (state.as<TensorPtr>() != nullptr) {
      throw usage_error({{}, path},
                        "is a tensor that is not sharded: the common part "
                        "holds plain values")
          .with_hint("make it a ShardedTensor, or keep it in this process");
    }
    return std::nullopt;
  }

  RankState finish(const std::optional<json>& common) {
    if (common) rank_.common = common->dump();
    rank_.owner = owners_;
    return std::move(rank_);
  }

 private:
  static json parse(const std::string& text, const std::string& path) {
    json value = json::parse(text, nullptr, false);
    if (value.is_discarded())
      throw usage_error({{}, path}, "its value is not JSON");
    return value;
  }
  static std::string below(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  // An empty dict stays; one whose members are all sharded is removed.
  std::optional<json> split_dict(const Dict& dict, const std::string& path) {
    json common = json::object();
    for (const auto& [name, member] : dict)
      if (auto part = split(member, below(path, name)))
        common[name] = std::move(*part);
    if (common.empty() && !dict.empty()) return std::nullopt;
    return common;
  }
  // A list keeps its length only if each member has something common.
  std::optional<json> split_list(const List& list, const std::string& path) {
    json common = json::array();
    for (size_t i = 0; i < list.size(); ++i)
      if (auto part = split(list[i], below(path, std::to_string(i))))
        common.push_back(std::move(*part));
    if (common.empty() && !list.empty()) return std::nullopt;
    return common;
  }

  RankState rank_;
  std::shared_ptr<std::vector<TensorPtr>> owners_ =
      std::make_shared<std::vector<TensorPtr>>();
};

}  // namespace

RankState rank_state(const State& state) {
  State built = state;
  apply_factories(built);
  if (built.as<Dict>() == nullptr)
    throw usage_error({}, "a state to be saved is a dict, not a {}",
                      kind_of(built));
  Splitter splitter;
  const std::optional<json> common = splitter.split(built, {});
  return splitter.finish(common);
}

}  // namespace ckpt::mcore
