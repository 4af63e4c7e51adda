// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/review.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/note.h"
#include "formats/olmo_core/olmo_core.h"
#include "formats/olmo_core/shards.h"
#include "formats/traits.h"
#include "lib/text/format.h"

namespace ckpt::olmo_core {
namespace {

using text::printable;
using Severity = Problem::Severity;

constexpr std::string_view kModel = "model.";
constexpr std::string_view kOptim = "optim.";
constexpr std::string_view kState = "state.";
constexpr std::string_view kGroups = "param_groups.";

bool is_optimizer(std::string_view name) {
  return name.starts_with(kState) || name.starts_with(kGroups);
}

// True for a plain DCP checkpoint with OLMo-core's own keys. (In Hugging Face's
// names "model." is part of the name.)
bool has_own_keys(const Catalog& source) {
  const formats::Traits& traits = formats::traits_of(source.format);
  if (!traits.any_tensors || !traits.flat_objects) return false;
  bool any = false;
  for (const Tensor& tensor : source.tensors) {
    if (tensor.kind != Kind::model) continue;
    if (!tensor.name.starts_with(kModel)) return false;
    any = true;
  }
  return any;
}

class Reviewer {
 public:
  explicit Reviewer(Catalog source)
      : source_(std::move(source)), own_keys_(has_own_keys(source_)) {}

  Catalog review() {
    find_states();
    for (Tensor& tensor : source_.tensors) rename(tensor);
    rename_skeleton();
    for (Object& object : source_.objects) rename(object);
    drop_objects();
    set_rules(source_);
    note_names();
    return std::move(source_);
  }

 private:
  std::string param_of(const std::string& name) const {
    return own_keys_ && name.starts_with(kModel) ? name.substr(kModel.size())
                                                 : name;
  }

  // state.<param>.<state>, from a container with names but no kinds
  // (safetensors, torch): takes the longest beginning that is a parameter.
  void find_states() {
    std::unordered_set<std::string_view> params;
    for (const Tensor& tensor : source_.tensors)
      if (tensor.kind == Kind::model && !tensor.name.starts_with(kState))
        params.emplace(tensor.name);
    for (Tensor& tensor : source_.tensors) {
      if (tensor.kind != Kind::model || !tensor.name.starts_with(kState))
        continue;
      const std::string_view rest =
          std::string_view(tensor.name).substr(kState.size());
      for (size_t dot = rest.rfind('.'); dot != rest.npos && dot > 0;
           dot = rest.rfind('.', dot - 1)) {
        if (!params.contains(rest.substr(0, dot))) continue;
        tensor.kind = Kind::optim;
        tensor.param = rest.substr(0, dot);
        tensor.state = rest.substr(dot + 1);
        break;
      }
    }
  }

  void rename(Tensor& tensor) {
    std::string name = tensor.name;
    if (tensor.kind == Kind::model) {
      name = param_of(name);
    } else if (tensor.kind == Kind::optim && !tensor.param.empty() &&
               !tensor.state.empty()) {
      tensor.param = param_of(tensor.param);
      // Generation 1 puts two underscores before a state's name.
      std::string_view state = tensor.state;
      if (state.starts_with("__")) state.remove_prefix(2);
      tensor.state = std::string(state);
      name = std::string(kState) + tensor.param + "." + tensor.state;
    } else if (name.starts_with(kOptim) &&
               is_optimizer(std::string_view(name).substr(kOptim.size()))) {
      name = name.substr(kOptim.size());
    }
    if (name == tensor.name) return;
    renamed_.emplace(std::move(tensor.name), name);
    tensor.name = std::move(name);
  }

  void rename_skeleton() {
    if (!source_.skeleton) return;
    for (auto& [node, name] : source_.skeleton->tensors) {
      const auto found = renamed_.find(name);
      if (found != renamed_.end()) name = found->second;
    }
  }

  static void rename(Object& object) {
    const std::string_view name = object.name;
    if (name.starts_with(kOptim) && is_optimizer(name.substr(kOptim.size())))
      object.name = std::string(name.substr(kOptim.size()));
  }

  void drop_objects() {
    std::erase_if(source_.objects, [&](const Object& object) {
      if (is_optimizer(object.name)) return false;
      source_.problems.push_back(
          warning("object_left_out", {{}, printable(object.name)},
                  "has no place in a checkpoint of OLMo-core; "
                  "it is left out"));
      return true;
    });
  }

  void note_names() {
    const auto model = [](const Tensor& t) { return t.kind == Kind::model; };
    const auto known = [&](const Tensor& t) {
      return model(t) && rule_of(t.name).state != TpRule::State::kUnknown;
    };
    const auto first = std::ranges::find_if(source_.tensors, model);
    if (first == source_.tensors.end()) return;
    // Norms have the same names everywhere; the embedding tells.
    const bool ours =
        std::ranges::any_of(source_.tensors, [&](const Tensor& t) {
          return known(t) && rule_of(t.name).state == TpRule::State::kSplit;
        });
    if (!ours)
      source_.problems.push_back(warning(
          "foreign_names", {source_.path, printable(first->name)},
          "no tensor has a name of OLMo-core's (embeddings.weight, "
          "blocks.0.attention.w_q.weight …): names are kept, and OLMo-core "
          "will not find its parameters"));
  }

  Catalog source_;
  const bool own_keys_;
  std::unordered_map<std::string, std::string> renamed_;
};

}  // namespace

Catalog review_names(Catalog source) {
  if (source.format == kFormat) return source;
  return Reviewer(std::move(source)).review();
}

}  // namespace ckpt::olmo_core
