// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/rules.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "formats/megatron/model/old_names.h"
#include "formats/megatron/model/parts.h"
#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

enum class Cut : uint8_t { kWhole, kRows, kColumns, kGated };

struct Row {
  std::string_view module;  // the last component before the parameter
  Cut weight = Cut::kWhole;
  Cut bias = Cut::kWhole;  // and anything else in the module
};

// By the last module of a name.
constexpr Row kRows[] = {
    {"word_embeddings", Cut::kRows},
    {"position_embeddings"},
    {"tokentype_embeddings"},
    {"relative_attention_bias"},
    {"output_layer", Cut::kRows, Cut::kRows},
    {"linear_qkv", Cut::kRows, Cut::kRows},
    {"linear_q", Cut::kRows, Cut::kRows},  // cross attention
    {"linear_kv", Cut::kRows, Cut::kRows},
    {"linear_q_proj", Cut::kRows, Cut::kRows},  // multi-latent attention
    {"linear_q_up_proj", Cut::kRows, Cut::kRows},
    {"linear_kv_up_proj", Cut::kRows, Cut::kRows},
    {"linear_proj", Cut::kColumns},
    {"linear_fc1", Cut::kGated, Cut::kGated},
    {"linear_fc2", Cut::kColumns},
    {"router"},
    {"fc1_latent_proj"},  // around experts of a smaller width
    {"fc2_latent_proj"},
    {"linear_wq_b"},  // the indexer of sparse attention
    {"linear_wk"},
    {"linear_weights_proj"},
    {"activation_func"},  // numbers of xIELU
    {"eh_proj", Cut::kRows, Cut::kRows},
    {"conv1d", Cut::kRows, Cut::kRows},  // state space models
    {"in_proj", Cut::kRows, Cut::kRows},
    {"out_proj", Cut::kColumns},
    {"query_key_value", Cut::kRows, Cut::kRows},  // megatron.legacy
    {"dense_h_to_4h", Cut::kGated, Cut::kGated},
    {"dense_4h_to_h", Cut::kColumns},
    {"dense", Cut::kColumns},
    {"per_layer_embedding", Cut::kRows},  // Gemma 4's, of each layer
    {"per_layer_model_proj", Cut::kRows},
    {"per_layer_input_gate"},
    {"per_layer_projection"},
    {"self_attention", Cut::kRows, Cut::kRows},  // one matrix instead of it
    {"mlp", Cut::kRows, Cut::kRows},
};

std::string_view last(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}
std::string_view without_last(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == name.npos ? std::string_view{} : name.substr(0, dot);
}

// "weight" of weight, weight7, weight_w, weight_v.
struct Parameter {
  std::string_view word;
  bool half = false;  // gate or up alone
};
Parameter parameter(std::string_view name) {
  if (name.ends_with("_w") || name.ends_with("_v"))
    return {name.substr(0, name.size() - 2), true};
  for (const std::string_view word : {"weight", "bias"})
    if (name.starts_with(word) &&
        std::ranges::all_of(name.substr(word.size()), text::is_digit))
      return {word, false};
  return {name, false};
}

TpRule rule(Cut cut, uint32_t axes, bool half, const Facts& facts) {
  switch (cut) {
    case Cut::kWhole:
      return TpRule::replicated();
    case Cut::kRows:
      return TpRule::split(axes);
    case Cut::kColumns:
      return TpRule::split(axes + 1);
    case Cut::kGated:
      if (half) return TpRule::split(axes);
      if (!facts.gated) return {};
      return TpRule::split(axes, *facts.gated ? 2 : 1);
  }
  return {};
}

// Norms are whole everywhere except inside a mixer, whose norm normalises what
// each rank holds.
bool is_norm(std::string_view module, std::string_view word) {
  return module.ends_with("norm") || module.ends_with("_norm") ||
         module.ends_with("layernorm") || word.starts_with("layer_norm_");
}

// True for towers of Megatron's own modules. The others are transformers'
// modules, which every rank has whole.
bool is_megatrons(const Key& key) {
  return key.name.starts_with("vision_model.decoder.") ||
         key.name.starts_with("vision_model.merger.");
}

// Plain linear layers of BertModel, whatever modules of a layer have such
// names.
bool is_whole(const Key& key) {
  return key.name.starts_with("lm_head.dense.") ||
         key.name.starts_with("pooler.") ||
         key.name.starts_with("binary_head.");
}

TpRule mixer_rule(const Key& key, std::string_view module,
                  std::string_view word) {
  if (module == "norm") return TpRule::split(key.axes());
  if (word == "D") return TpRule::split(key.axes());
  return {};
}

// Megatron-Bridge's adapters, inside the module that they are added to:
//   ….linear_proj.adapter.linear_in.weight              columns, as the module
//   ….linear_qkv.adapter.adapter_q.linear_out.weight    rows
// linear_in of any other module is cut by rows, too: the adapter's rank.
TpRule adapter_rule(const Key& key, const Facts& facts) {
  constexpr std::string_view kAdapter = ".adapter.";
  const size_t at = key.name.find(kAdapter);
  if (at == key.name.npos) return {};
  const std::string_view base = last(key.name.substr(0, at));
  const std::string_view rest = key.name.substr(at + kAdapter.size());
  const auto row = std::ranges::find(kRows, base, &Row::module);
  const Cut cut = row == std::end(kRows) ? Cut::kRows : row->weight;
  if (rest.ends_with("linear_in.weight"))
    return TpRule::split(key.axes() + (cut == Cut::kColumns ? 1 : 0));
  if (!rest.ends_with("linear_out.weight")) return {};
  const bool fused = cut == Cut::kGated && !rest.starts_with("adapter_");
  return rule(fused ? cut : Cut::kRows, key.axes(), false, facts);
}

}  // namespace

TpRule tp_rule(std::string_view name, const Facts& facts) {
  if (!name.starts_with("language_model."))
    return tp_rule(parse_key(name), facts);
  const std::string core = core_name(name);
  return tp_rule(parse_key(core), facts);
}

TpRule tp_rule(const Key& key, const Facts& facts) {
  if (key.tower && !is_megatrons(key)) return TpRule::replicated();
  if (const TpRule found = adapter_rule(key, facts);
      found.state != TpRule::State::kUnknown)
    return found;
  if (is_whole(key)) return TpRule::replicated();
  std::string_view path = key.name;
  const bool mixer = path.find("mixer.") != path.npos;
  // One key for each part of the rows, or one for all. Shapes then say where
  // the parts begin (MixerParts).
  if (part_key(path) || !parts_of(path).empty())
    return TpRule::split(key.axes());
  const Parameter what = parameter(last(path));
  const std::string_view module = last(without_last(path));
  if (what.word == "A_log" || what.word == "dt_bias")
    return TpRule::split(key.axes());  // a gated delta net's, too
  if (mixer)
    if (const TpRule found = mixer_rule(key, module, what.word);
        found.state != TpRule::State::kUnknown)
      return found;
  if (is_norm(module, what.word) || what.word == "gate_weight" ||
      what.word == "layer_scalar")
    return TpRule::replicated();
  if (what.word == "softmax_offset") return TpRule::split(key.axes());
  // Whole under transformer_engine, cut by rows in the local spec.
  if (module == "linear_q_down_proj" || module == "linear_kv_down_proj")
    return facts.local_spec == true ? TpRule::split(key.axes())
                                    : TpRule::replicated();
  Facts own = facts;
  if (key.tower) own.gated = false;
  for (const Row& row : kRows)
    if (row.module == module)
      return rule(what.word == "weight" ? row.weight : row.bias, key.axes(),
                  what.half, own);
  return key.tower ? TpRule::replicated() : TpRule{};
}

namespace {

// Gated if fc1 has twice as many rows as fc2 has columns. Nothing if the shapes
// don't tell. `key_of` gives the key of the tensor with a number.
template <class KeyOf>
std::optional<bool> gated_by_shapes(const std::vector<Tensor>& tensors,
                                    KeyOf key_of) {
  std::unordered_map<std::string, uint64_t> columns;  // of fc2, by its module
  const auto module_of = [](std::string_view name, std::string_view word) {
    const size_t at = name.rfind(word);
    return std::string(at == name.npos ? name.substr(0, 0)
                                       : name.substr(0, at));
  };
  // The layer's own weight; linear_fc2.post_layernorm.weight is a norm's.
  const auto is = [](const Tensor& tensor, std::string_view word) {
    const std::string_view name = last(tensor.name);
    return tensor.kind != Kind::optim && tensor.shape.size() >= 2 &&
           std::string_view(tensor.name)
               .substr(0, tensor.name.size() - name.size())
               .ends_with(word) &&
           parameter(name).word == "weight" && !parameter(name).half;
  };
  for (const Tensor& tensor : tensors)
    if (is(tensor, "linear_fc2."))
      columns[module_of(tensor.name, "linear_fc2.")] = tensor.shape.back();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (!is(tensor, "linear_fc1.") || key_of(i).tower) continue;
    const auto fc2 = columns.find(module_of(tensor.name, "linear_fc1."));
    if (fc2 == columns.end() || fc2->second == 0) continue;
    const uint64_t rows = tensor.shape[tensor.shape.size() - 2];
    if (rows == fc2->second) return false;
    if (rows / 2 == fc2->second && rows % 2 == 0) return true;
  }
  return std::nullopt;
}

template <class KeyOf>
void infer(const std::vector<Tensor>& tensors, KeyOf key_of, Facts& facts) {
  if (!facts.gated) facts.gated = gated_by_shapes(tensors, key_of);
  uint64_t layers = 0, experts = 0;
  bool embedding = false, output = false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (tensor.kind == Kind::optim) continue;
    const Key& key = key_of(i);
    if (key.tower) continue;
    embedding |= key.name == "embedding.word_embeddings.weight";
    output |= key.name == "output_layer.weight";
    const bool decoder = key.name.starts_with("decoder.");
    if (decoder && key.layer) layers = std::max(layers, *key.layer + 1);
    if (decoder && key.layer_axis && !tensor.shape.empty())
      layers = std::max(layers, tensor.shape[0]);
    if (key.expert) experts = std::max(experts, *key.expert + 1);
    const size_t axis = key.layer_axis ? 1 : 0;
    if (key.expert_axis && tensor.shape.size() > axis)
      experts = std::max(experts, tensor.shape[axis]);
  }
  if (!facts.num_layers && layers != 0) facts.num_layers = layers;
  if (!facts.num_experts && experts != 0) facts.num_experts = experts;
  if (!facts.untied && embedding) facts.untied = output;
}

}  // namespace

void infer_facts(const std::vector<Tensor>& tensors, const KeyList& keys,
                 Facts& facts) {
  infer(
      tensors, [&](size_t i) -> const Key& { return keys[i]; }, facts);
}

void infer_facts(const std::vector<Tensor>& tensors, Facts& facts) {
  infer(
      tensors, [&](size_t i) { return parse_key(tensors[i].name); }, facts);
}

}  // namespace ckpt::megatron
