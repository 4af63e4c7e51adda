// SPDX-License-Identifier: Apache-2.0
// The way back: joins halves, separates layers and experts, names modules.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/parts.h"
#include "formats/megatron/model/restack.h"
#include "formats/megatron/model/spelling.h"
#include "formats/megatron/model/stack.h"

namespace ckpt::megatron {

namespace {

// "…weight" for "…weight_w" and "…weight_v".
std::string whole_name(std::string_view name) {
  if (!name.ends_with("_w") && !name.ends_with("_v")) return {};
  const std::string_view whole = name.substr(0, name.size() - 2);
  const bool ours = whole.ends_with("linear_fc1.weight") ||
                    whole.ends_with("linear_fc1.bias");
  return ours ? std::string(whole) : std::string();
}

}  // namespace

bool join_gated(Catalog& catalog) {
  std::unordered_map<std::string, std::array<const Tensor*, 2>> halves;
  for (const Tensor& tensor : catalog.tensors)
    if (const std::string whole = whole_name(tensor.name); !whole.empty())
      halves[whole][tensor.name.back() == 'v'] = &tensor;
  if (halves.empty()) return false;
  locate(catalog);
  std::vector<Tensor> all;
  for (Tensor& tensor : catalog.tensors) {
    const std::string whole = whole_name(tensor.name);
    if (whole.empty()) {
      all.push_back(std::move(tensor));
      continue;
    }
    const auto& [gate, up] = halves.at(whole);
    if (!gate || !up)
      throw unfaithful_error({catalog.path, whole}, "its {} half is missing",
                             gate ? "_v" : "_w");
    if (&tensor != std::min(gate, up)) continue;
    const uint32_t axis = parse_key(tensor.name).axes();
    if (axis >= gate->shape.size())
      throw unfaithful_error({catalog.path, gate->name}, "has shape {}",
                             to_string(gate->shape));
    const Tensor* const parts[] = {gate, up};
    Tensor made = join(parts, axis);
    made.name = whole;
    if (!made.param.empty()) made.param = std::string(parse_key(whole).model);
    if (made.tp.state == TpRule::State::kSplit) made.tp.groups = 2;
    all.push_back(std::move(made));
  }
  catalog.tensors = std::move(all);
  return true;
}

namespace {

// The key with a number where it has an axis.
std::string numbered(const std::string& name, std::string_view word,
                     uint64_t number) {
  const size_t at = name.find(word) + word.size();
  return fmt::format("{}{}.{}", name.substr(0, at), number, name.substr(at));
}

// Makes each index of an axis a separate tensor.
void spread(Catalog& catalog, bool Key::*axis, std::string_view word,
            const char* what) {
  constexpr uint64_t kMost = 1 << 20;
  std::vector<Tensor> all;
  for (Tensor& tensor : catalog.tensors) {
    const Key key = parse_key(tensor.name);
    const bool known = key.rooted || key.tower;
    if (!known || !(key.*axis) || tensor.shape.empty()) {
      all.push_back(std::move(tensor));
      continue;
    }
    if (tensor.shape[0] > kMost)
      throw resource_error({catalog.path, tensor.name}, "{} {}s",
                           tensor.shape[0], what);
    for (uint64_t i = 0; i < tensor.shape[0]; ++i) {
      Tensor one = part(tensor, 0, i);
      one.name = numbered(tensor.name, word, i);
      if (!one.param.empty())
        one.param = std::string(parse_key(one.name).model);
      all.push_back(std::move(one));
    }
  }
  catalog.tensors = std::move(all);
}

}  // namespace

void number_layers(Catalog& catalog) {
  locate(catalog);
  spread(catalog, &Key::layer_axis, "layers.", "layer");
  spread(catalog, &Key::expert_axis, ".experts.experts.", "expert");
}

namespace {

// "….experts.experts.7.linear_fc1.weight" as a module has it.
std::string expert_module(const std::string& rest, bool local) {
  constexpr std::string_view kExperts = "mlp.experts.experts.";
  if (!rest.starts_with(kExperts)) return rest;
  const size_t dot = rest.find('.', kExperts.size());
  if (dot == rest.npos) return rest;
  const std::string number =
      rest.substr(kExperts.size(), dot - kExperts.size());
  return local ? fmt::format("mlp.experts.local_experts.{}{}", number,
                             rest.substr(dot))
               : fmt::format("mlp.experts{}{}", rest.substr(dot), number);
}

std::string module_name(const std::string& name, bool local) {
  const std::string prefix = layer_prefix(name);
  if (prefix.empty()) return name;
  std::string rest = expert_module(name.substr(prefix.size()), local);
  if (local) {
    replace_front(rest, "self_attention.linear_qkv.layer_norm_",
                  "input_layernorm.");
    replace_front(rest, "mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.");
  }
  return prefix + rest;
}

}  // namespace

void name_modules(Catalog& catalog, const Facts& facts) {
  join_gated(catalog);
  number_layers(catalog);
  join_parts(catalog);
  const bool local = facts.local_spec == true;
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim && !tensor.param.empty()) {
      if (tensor.state == "param") tensor.state = "fp32_param";
      tensor.param = module_name(tensor.param, local);
      tensor.name = fmt::format("{}.{}", tensor.state, tensor.param);
    } else {
      tensor.name = module_name(tensor.name, local);
    }
  }
  sort_modules(catalog, keys_of(catalog.tensors), local);
  catalog.claims.clear();
  const size_t states = std::erase_if(catalog.objects, [](const Object& o) {
    return o.name.find("._extra_state/shard_") != std::string::npos;
  });
  if (states != 0)
    catalog.problems.push_back(
        warning("object_left_out", {{}, "_extra_state"},
                "{} objects of layers are left out; scaling factors of "
                "FP8 layers, if they hold any, are learned again",
                states));
  catalog.assumptions.push_back(fmt::format(
      "modules: named as in the {} spec ({})",
      local ? "local" : "transformer_engine",
      facts.local_spec ? "args.transformer_impl" : "the args don't say"));
}

}  // namespace ckpt::megatron
