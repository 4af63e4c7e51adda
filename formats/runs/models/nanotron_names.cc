// SPDX-License-Identifier: Apache-2.0
// Read from nanotron 0.4's models/llama.py, from models/llama.py and
// models/qwen.py of its main branch, and from its
// examples/llama/convert_nanotron_to_hf.py.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "formats/runs/models/nanotron_config.h"
#include "formats/runs/models/own_names.h"
#include "formats/runs/models/titan_views.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::runs {
namespace {

using families::View;
using text::printable;

constexpr std::string_view kLayers = "model.decoder.";
constexpr std::string_view kPipeline = "pp_block.";

struct Pair {
  std::string_view nanotron, hf;
};
constexpr Pair kTop[] = {
    {kNanotronEmbedding, "model.embed_tokens.weight"},
    {"model.final_layer_norm.pp_block.weight", "model.norm.weight"},
    {"model.lm_head.pp_block.weight", "lm_head.weight"},
};
constexpr Pair kLayer[] = {
    {"attn.o_proj.weight", "self_attn.o_proj.weight"},
    {"mlp.down_proj.weight", "mlp.down_proj.weight"},
    {"input_layernorm.weight", "input_layernorm.weight"},
    {"post_attention_layernorm.weight", "post_attention_layernorm.weight"},
};
constexpr std::string_view kQkv = "attn.qkv_proj.weight";
constexpr std::string_view kQkvBias = "attn.qkv_proj.bias";
constexpr std::string_view kGateUp = "mlp.gate_up_proj.weight";

// "attn.qkv_proj.weight" of "model.decoder.3.pp_block.attn.qkv_proj.weight".
struct InLayer {
  uint64_t number = 0;
  std::string_view rest;
};

std::optional<InLayer> in_layer(std::string_view name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  const auto number =
      text::take_number(name, UINT64_MAX, text::Zeros::kRefused);
  if (!number || !name.starts_with(".")) return std::nullopt;
  name.remove_prefix(1);
  if (!name.starts_with(kPipeline)) return std::nullopt;
  return InLayer{*number, name.substr(kPipeline.size())};
}

class FromNanotron {
 public:
  explicit FromNanotron(Catalog& source)
      : source_(source), model_(read_nanotron_model(source)) {}

  void run() {
    check_biases();
    for (const Tensor& tensor : source_.tensors) {
      if (tensor.kind == Kind::other)
        made_.push_back(tensor);
      else
        take(tensor);
    }
    if (!model_.config.empty()) add_config();
    source_.tensors = std::move(made_);
    for (Problem& problem : model_.problems)
      source_.problems.push_back(std::move(problem));
    source_.assumptions.push_back(fmt::format(
        "nanotron: projections by {} and {} heads, as {} says; rotary pairs {}",
        model_.queries, model_.keys, model_.heads_said,
        model_.pairs ? "are adjacent" : "are halves, as in transformers"));
  }

 private:
  // Where there are none, a model of transformers makes them up.
  void check_biases() const {
    const auto count = [&](std::string_view rest) {
      return std::ranges::count_if(source_.tensors, [&](const Tensor& tensor) {
        const auto at =
            tensor.kind == Kind::model ? in_layer(tensor.name) : std::nullopt;
        return at && at->rest == rest;
      });
    };
    const auto weights = count(kQkv);
    const auto biases = count(kQkvBias);
    if (biases == (model_.biased ? weights : 0)) return;
    throw unfaithful_error({source_.path, {}},
                           "{} of {} layers have an attn.qkv_proj.bias, and "
                           "model_config.json says attention_bias {}",
                           biases, weights, model_.biased)
        .with_hint("it is of another model, or damaged");
  }

  void add(const Tensor& from, std::string name) {
    set_parameter(made_.emplace_back(from), std::move(name));
  }
  void add(const Tensor& from, const std::string& name, const View& view) {
    add(from, name);
    into(view, made_.back());
  }

  void take(const Tensor& tensor) {
    const auto parts = parts_of_nanotron(parameter_of(tensor));
    if (parts.empty())
      throw unfaithful_error({source_.path, printable(tensor.name)},
                             "has no counterpart that is known between "
                             "nanotron's Llama and Qwen2 and the models of "
                             "transformers")
          .with_hint("--dialect keep keeps nanotron's names");
    if (parts.size() == 1)
      add(tensor, parts.front());
    else
      split(tensor, parts);
  }

  // In rows: queries, keys, values, or gate and up.
  void split(const Tensor& tensor, const std::vector<std::string>& names) {
    // A parameter's step; each part has taken as many.
    if (tensor.shape.empty()) {
      for (const std::string& name : names) add(tensor, name);
      return;
    }
    const bool qkv = names.size() == 3;
    const std::vector<uint64_t> heads =
        qkv ? std::vector{model_.queries, model_.keys, model_.keys}
            : std::vector<uint64_t>{1, 1};
    const uint64_t all =
        std::accumulate(heads.begin(), heads.end(), uint64_t{0});
    const Shape& shape = tensor.shape;
    const bool bias = parameter_of(tensor).ends_with(".bias");
    if (shape.size() != (bias ? 1U : 2U) ||
        (!bias && shape[1] != model_.width) || shape[0] % all != 0 ||
        (qkv && shape[0] / all != model_.width / model_.queries))
      throw unfaithful_error(
          {source_.path, printable(tensor.name)},
          "has shape {}, {} says hidden_size {} and {} and {} heads",
          to_string(shape), model_.heads_said, model_.width, model_.queries,
          model_.keys);
    const bool turned = qkv && model_.pairs && is_rotary(tensor);
    const uint64_t each = shape[0] / all;
    const View whole = View::of(tensor);
    uint64_t begin = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      View view = whole.slice(0, begin, heads[i] * each);
      begin += heads[i] * each;
      if (turned && i < 2) view = titan::turn(view, heads[i], false);
      add(tensor, names[i], view);
    }
  }

  bool is_rotary(const Tensor& tensor) const {
    const auto at = in_layer(parameter_of(tensor));
    return model_.no_rope == 0 || (at->number + 1) % model_.no_rope != 0;
  }

  void add_config() {
    auto text = std::make_shared<std::string>(model_.config);
    source_.sidecars.push_back({.name = "config.json",
                                .path = io::join(source_.path, "config.json"),
                                .size = text->size(),
                                .text = std::move(text)});
  }

  Catalog& source_;
  NanotronModel model_;
  std::vector<Tensor> made_;
};

}  // namespace

bool has_nanotron_names(const Catalog& source) {
  return std::ranges::any_of(source.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::model && in_layer(tensor.name);
  });
}

std::vector<std::string> parts_of_nanotron(const std::string& parameter) {
  for (const Pair& pair : kTop)
    if (parameter == pair.nanotron) return {std::string(pair.hf)};
  const auto at = in_layer(parameter);
  if (!at) return {};
  const std::string layer = fmt::format("model.layers.{}.", at->number);
  for (const Pair& pair : kLayer)
    if (at->rest == pair.nanotron) return {layer + std::string(pair.hf)};
  if (at->rest == kQkv || at->rest == kQkvBias) {
    const char* what = at->rest == kQkv ? "weight" : "bias";
    return {fmt::format("{}self_attn.q_proj.{}", layer, what),
            fmt::format("{}self_attn.k_proj.{}", layer, what),
            fmt::format("{}self_attn.v_proj.{}", layer, what)};
  }
  if (at->rest == kGateUp)
    return {layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"};
  return {};
}

void from_nanotron(Catalog& source) { FromNanotron(source).run(); }

}  // namespace ckpt::runs
