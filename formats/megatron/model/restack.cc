// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/restack.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <unordered_map>

#include "ckpt/error.h"
#include "formats/megatron/model/forks.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/old_names.h"
#include "formats/megatron/model/parts.h"
#include "formats/megatron/model/stack.h"

namespace ckpt::megatron {
namespace {

// What the modules of one layer are like.
struct LayerStyle {
  bool qkv = false;         // has self_attention.linear_qkv
  bool input_norm = false;  // a norm of its own: the local spec
};

using Styles = std::unordered_map<std::string, LayerStyle>;

// Optimizer state is named after its parameter, where that is known.
std::string& own_name(Tensor& tensor) {
  const bool state = tensor.kind == Kind::optim && !tensor.param.empty();
  return state ? tensor.param : tensor.name;
}

// `prefixes`: layer_prefix() of each tensor's name.
Styles styles_of(const Catalog& catalog,
                 const std::vector<std::string>& prefixes) {
  Styles styles;
  for (size_t i = 0; i < prefixes.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    const std::string& prefix = prefixes[i];
    if (tensor.kind == Kind::optim || prefix.empty()) continue;
    const std::string_view rest =
        std::string_view(tensor.name).substr(prefix.size());
    LayerStyle& style = styles[prefix];
    style.qkv |= rest.starts_with("self_attention.linear_qkv.weight");
    style.input_norm |= rest == "input_layernorm.weight";
  }
  return styles;
}

// A parameter's name inside its layer, as in the sharded key: the local spec's
// norms have the names of the linear layers that they precede, as if they were
// fused. (Not with latent attention, which has no linear_qkv.)
std::string sharded_rest(std::string rest, const LayerStyle& style) {
  replace_front(rest, "mtp_model_layer.", "transformer_layer.");
  replace_front(rest, "mixer.conv1d_", "mixer.conv1d.");
  if (!style.qkv || !style.input_norm) return rest;
  replace_front(rest, "input_layernorm.",
                "self_attention.linear_qkv.layer_norm_");
  replace_front(rest, "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_");
  return rest;
}

// The name without its expert's number.
std::string without_expert(const std::string& name) {
  constexpr std::string_view kLocal = ".experts.local_experts.";
  constexpr std::string_view kSingle = ".experts.experts.";
  constexpr std::string_view kGrouped = ".experts.linear_fc";
  if (const size_t at = name.find(kLocal); at != name.npos) {
    const size_t dot = name.find('.', at + kLocal.size());
    return name.substr(0, at) + ".experts.experts" + name.substr(dot);
  }
  // singleton_local_shards: .experts.experts.7.linear_fc1.weight
  if (const size_t at = name.find(kSingle); at != name.npos) {
    const size_t digits = at + kSingle.size();
    const size_t dot = name.find('.', digits);
    if (digits < name.size() && name[digits] >= '0' && name[digits] <= '9')
      return name.substr(0, digits - 1) + name.substr(dot);
  }
  const size_t at = name.find(kGrouped);
  if (at == name.npos) return name;
  const size_t end = name.find_last_not_of("0123456789") + 1;
  return name.substr(0, at) + ".experts" + name.substr(at, end - at);
}

// The parts of one tensor of the target.
struct Group {
  std::map<uint64_t, std::vector<const Tensor*>> by_number;
  size_t first = 0;  // where its first part is
};

class Restacker {
 public:
  Restacker(Catalog& catalog, const Facts& facts)
      : catalog_(catalog), facts_(facts) {}

  void run() {
    refuse_fork(catalog_);
    rename_modules();
    const bool experts = collect([](const Key& key) { return key.expert; },
                                 [](const std::string& name, const Key&) {
                                   return without_expert(name);
                                 },
                                 false);
    if (experts) keys_ = keys_of(catalog_.tensors);
    find_homogeneous();
    if (split_parts(catalog_)) keys_ = keys_of(catalog_.tensors);
    // Main weights of what was cut are no longer claimed.
    std::erase_if(names_, [](const auto& name) {
      return !parts_of(name.second).empty();
    });
    collect(
        [this](const Key& key) {
          return is_stack(key) && counts_.contains(std::string(stack_of(key)))
                     ? key.layer
                     : std::nullopt;
        },
        without_layer, true);
    finish();
  }

 private:
  // mtp keeps its numbers.
  static bool is_stack(const Key& key) {
    if (key.tower) return key.name.starts_with("vision_model.decoder.layers.");
    return key.name.starts_with("decoder.layers.") ||
           key.name.starts_with("encoder.layers.");
  }

  static std::string without_layer(const std::string& name, const Key& key) {
    const size_t at = static_cast<size_t>(key.name.data() - name.data()) +
                      key.name.find("layers.") + 7;
    return name.substr(0, at) + name.substr(name.find('.', at) + 1);
  }

  // T5, with an encoder and a decoder, keeps its old names.
  void rename_old_models() {
    for (const Tensor& tensor : catalog_.tensors)
      if (tensor.name.starts_with("language_model.decoder.")) return;
    for (Tensor& tensor : catalog_.tensors) {
      if (tensor.kind != Kind::optim) {
        tensor.name = core_name(tensor.name);
      } else if (!tensor.param.empty()) {
        tensor.param = core_name(tensor.param);
      }
    }
  }

  void rename_modules() {
    std::vector<std::string> old;
    for (const Tensor& tensor : catalog_.tensors) old.push_back(tensor.name);
    rename_old_models();
    std::vector<std::string> prefixes;
    for (Tensor& tensor : catalog_.tensors) {
      keys_.push_back(parse_key(own_name(tensor)));
      prefixes.push_back(layer_prefix(keys_.back()));
    }
    const Styles styles = styles_of(catalog_, prefixes);
    for (size_t i = 0; i < old.size(); ++i) {
      Tensor& tensor = catalog_.tensors[i];
      std::string& name = own_name(tensor);
      const std::string& prefix = prefixes[i];
      const auto style = styles.find(prefix);
      std::string sharded = name;
      if (!prefix.empty())
        sharded = prefix + sharded_rest(name.substr(prefix.size()),
                                        style == styles.end() ? LayerStyle{}
                                                              : style->second);
      const bool state = &name == &tensor.param;
      const bool renamed = sharded != name;
      if (renamed) name = std::move(sharded);
      if (state)
        tensor.name =
            fmt::format("optimizer.state.{}.{}", tensor.state, tensor.param);
      if (state || renamed) keys_[i] = parse_key(tensor.name);
      names_[old[i]] = tensor.name;
    }
  }

  // Stacks the tensors with a number, under the name without it. False if there
  // are none: then no tensor has moved.
  template <class NumberOf, class Without>
  bool collect(NumberOf number_of, Without without, bool layers) {
    std::map<std::string, Group> groups;
    std::vector<std::string> target(catalog_.tensors.size());
    std::unordered_map<std::string, std::string> renamed;
    for (size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const Tensor& tensor = catalog_.tensors[i];
      const Key& key = keys_[i];
      const auto number = number_of(key);
      if (!number) continue;
      target[i] = without(tensor.name, key);
      renamed[tensor.name] = target[i];
      Group& group = groups.try_emplace(target[i], Group{{}, i}).first->second;
      group.by_number[*number].push_back(&tensor);
    }
    if (groups.empty()) return false;
    std::vector<Tensor> all;
    for (size_t i = 0; i < target.size(); ++i) {
      if (target[i].empty()) {
        all.push_back(std::move(catalog_.tensors[i]));
        continue;
      }
      const Group& group = groups.at(target[i]);
      if (group.first == i) all.push_back(stacked(target[i], group, layers));
    }
    for (auto& [old, name] : names_)
      if (const auto found = renamed.find(name); found != renamed.end())
        name = found->second;
    catalog_.tensors = std::move(all);
    return true;
  }

  // The number of layers in a stack, or of experts; 0: unknown.
  uint64_t count_of(const Key& key, bool layers) const {
    if (!layers) return facts_.num_experts.value_or(0);
    const auto found = counts_.find(std::string(stack_of(key)));
    return found == counts_.end() ? 0 : found->second;
  }
  static std::string_view stack_of(const Key& key) {
    return key.name.substr(0, key.name.find('.'));
  }

  Tensor stacked(const std::string& name, const Group& group,
                 bool layers) const {
    const char* what = layers ? "layer" : "expert";
    const Key key = parse_key(name);
    const uint64_t count = count_of(key, layers);
    std::vector<const Tensor*> parts;
    for (const auto& [number, found] : group.by_number) {
      if (found.size() != 1 || number != parts.size())
        throw unfaithful_error(
            {catalog_.path, name}, "{} {} {}", what,
            found.size() != 1 ? number : parts.size(),
            found.size() != 1 ? "is there twice" : "is missing");
      parts.push_back(found[0]);
    }
    if (count != 0 && parts.size() != count)
      throw unfaithful_error({catalog_.path, name}, "{} of {} {}s have it",
                             parts.size(), count, what);
    Tensor made = stack(parts, 0);
    made.name = name;
    if (!made.param.empty()) made.param = std::string(key.model);
    return made;
  }

  // Finds stacks whose layers all have the same parameters, shapes and dtypes.
  void find_homogeneous() {
    if (facts_.numbered_layers == true) return;
    struct Seen {
      const Tensor* first = nullptr;
      std::string stack;
      std::set<uint64_t> layers;
    };
    std::map<std::string, Seen> seen;
    std::map<std::string, std::set<uint64_t>> stacks;
    std::set<std::string> mixed;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const Tensor& tensor = catalog_.tensors[i];
      const Key& key = keys_[i];
      if (!key.layer || !is_stack(key) || !key.state.empty()) continue;
      const std::string stack(stack_of(key));
      Seen& one = seen[without_layer(tensor.name, key)];
      if (!one.first) one.first = &tensor, one.stack = stack;
      if (one.first->shape != tensor.shape || one.first->dtype != tensor.dtype)
        mixed.insert(stack);
      // Stacks with state space layers number all of them.
      if (tensor.name.find("mixer.") != tensor.name.npos) mixed.insert(stack);
      one.layers.insert(*key.layer);
      stacks[stack].insert(*key.layer);
    }
    for (const auto& [name, one] : seen)
      if (one.layers != stacks.at(one.stack)) mixed.insert(one.stack);
    for (const auto& [stack, layers] : stacks)
      if (!mixed.contains(stack)) counts_[stack] = layers.size();
  }

  void finish() {
    std::set<std::pair<std::string, std::string>> told;
    std::vector<Claim> claims;
    for (Claim& claim : catalog_.claims) {
      const auto exact = names_.find(claim.exact);
      const auto rounded = names_.find(claim.rounded);
      if (exact == names_.end() || rounded == names_.end()) continue;
      if (!told.emplace(exact->second, rounded->second).second) continue;
      claim.exact = exact->second;
      claim.rounded = rounded->second;
      claims.push_back(std::move(claim));
    }
    catalog_.claims = std::move(claims);
    for (Tensor& tensor : catalog_.tensors) tensor.tie = 0;
  }

  Catalog& catalog_;
  const Facts& facts_;
  KeyList keys_;  // of the tensors, as they are named now
  std::unordered_map<std::string, std::string> names_;  // old to new
  std::unordered_map<std::string, uint64_t> counts_;    // of layers, by stack
};

}  // namespace

void stack_modules(Catalog& catalog, const Facts& facts) {
  locate(catalog);
  Restacker(catalog, facts).run();
}

}  // namespace ckpt::megatron
