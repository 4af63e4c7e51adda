// SPDX-License-Identifier: Apache-2.0
// Turns a sharded state dict into what one rank contributes to a save
// (megatron-core: serialization.py, save).
#include <optional>
#include <string>

#include "api/mcore/tree.h"
#include "lib/text/json.h"
#include "lib/text/json_text.h"

namespace ckpt::mcore {
namespace {

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
  // The common values in this part, as JSON; nothing if all of it is sharded or
  // stays here.
  std::optional<std::string> split(const State& state,
                                   const std::string& path) {
    const Level level;
    if (const auto* dict = state.as<Dict>()) return split_dict(*dict, path);
    if (const auto* list = state.as<List>()) return split_list(*list, path);
    if (const auto* plain = state.as<Json>()) return checked(plain->text, path);
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

  RankState finish(const std::optional<std::string>& common) {
    if (common) rank_.common = *common;
    rank_.owner = owners_;
    return std::move(rank_);
  }

 private:
  // The text itself is kept: it has integers of any size.
  static std::string checked(const std::string& text, const std::string& path) {
    try {
      text::parse_json(text, path);
    } catch (const Error& error) {
      throw usage_error({{}, path}, "its value is not JSON: {}",
                        error.problem());
    }
    return text;
  }
  static std::string below(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  // An empty dict stays; one whose members are all sharded is removed.
  std::optional<std::string> split_dict(const Dict& dict,
                                        const std::string& path) {
    std::string common;
    for (const auto& [name, member] : dict)
      if (const auto part = split(member, below(path, name)))
        common +=
            (common.empty() ? "" : ",") + text::json_text(name) + ":" + *part;
    if (common.empty() && !dict.empty()) return std::nullopt;
    return "{" + common + "}";
  }
  // A list keeps its length only if each member has something common.
  std::optional<std::string> split_list(const List& list,
                                        const std::string& path) {
    std::string common;
    for (size_t i = 0; i < list.size(); ++i)
      if (const auto part = split(list[i], below(path, std::to_string(i))))
        common += (common.empty() ? "" : ",") + *part;
    if (common.empty() && !list.empty()) return std::nullopt;
    return "[" + common + "]";
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
  const std::optional<std::string> common = splitter.split(built, {});
  return splitter.finish(common);
}

}  // namespace ckpt::mcore
