// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/titan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "ckpt/error.h"
#include "formats/runs/run.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/other_json.h"
#include "models/view.h"

namespace ckpt::runs {
namespace {

using families::View;
using text::printable;

struct Pair {
  std::string_view hf, titan;  // below a layer, or at the top
};

constexpr auto kTop = std::to_array<Pair>({
    {"model.embed_tokens.weight", "tok_embeddings.weight"},
    {"model.norm.weight", "norm.weight"},
    {"lm_head.weight", "lm_head.weight"},
});
constexpr auto kLayer = std::to_array<Pair>({
    {"self_attn.q_proj.weight", "attention.qkv_linear.wq.weight"},
    {"self_attn.k_proj.weight", "attention.qkv_linear.wk.weight"},
    {"self_attn.v_proj.weight", "attention.qkv_linear.wv.weight"},
    {"self_attn.o_proj.weight", "attention.wo.weight"},
    {"self_attn.q_norm.weight", "attention.q_norm.weight"},
    {"self_attn.k_norm.weight", "attention.k_norm.weight"},
    {"mlp.gate_proj.weight", "feed_forward.w1.weight"},
    {"mlp.up_proj.weight", "feed_forward.w3.weight"},
    {"mlp.down_proj.weight", "feed_forward.w2.weight"},
    {"input_layernorm.weight", "attention_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
});
constexpr std::string_view kFused = "attention.qkv_linear.wqkv.weight";
constexpr std::string_view kHfLayers = "model.layers.";
constexpr std::string_view kTitanLayers = "layers.";

// "3." of "model.layers.3.mlp.up_proj.weight", and what follows.
struct InLayer {
  std::string number;
  std::string_view rest;
};
std::optional<InLayer> in_layer(std::string_view name,
                                std::string_view layers) {
  if (!name.starts_with(layers)) return std::nullopt;
  name.remove_prefix(layers.size());
  const size_t dot = name.find('.');
  if (dot == name.npos || dot == 0 ||
      name.substr(0, dot).find_first_not_of("0123456789") != name.npos)
    return std::nullopt;
  return InLayer{std::string(name.substr(0, dot + 1)), name.substr(dot + 1)};
}

std::string titan_name(const std::string& name) {
  for (const Pair& pair : kTop)
    if (name == pair.hf) return std::string(pair.titan);
  const auto layer = in_layer(name, kHfLayers);
  for (const Pair& pair : kLayer)
    if (layer && layer->rest == pair.hf)
      return std::string(kTitanLayers) + layer->number +
             std::string(pair.titan);
  return {};
}

std::string hf_name(const std::string& name) {
  for (const Pair& pair : kTop)
    if (name == pair.titan) return std::string(pair.hf);
  const auto layer = in_layer(name, kTitanLayers);
  for (const Pair& pair : kLayer)
    if (layer && layer->rest == pair.titan)
      return std::string(kHfLayers) + layer->number + std::string(pair.hf);
  return {};
}

// The names of transformers' three projections that the fused one stands for.
std::vector<std::string> parts_of_fused(const std::string& name) {
  const auto layer = in_layer(name, kTitanLayers);
  if (!layer || layer->rest != kFused) return {};
  std::vector<std::string> parts;
  for (size_t i = 0; i < 3; ++i)
    parts.push_back(std::string(kHfLayers) + layer->number +
                    std::string(kLayer[i].hf));
  return parts;
}

std::string fused_of(const std::string& hf) {
  const auto layer = in_layer(hf, kHfLayers);
  for (size_t i = 0; layer && i < 3; ++i)
    if (layer->rest == kLayer[i].hf)
      return std::string(kTitanLayers) + layer->number + std::string(kFused);
  return {};
}

struct Heads {
  uint64_t queries = 0, keys = 0;
  bool pairs = false;  // rotary pairs are adjacent: Llama's
};

Heads heads_of(const Catalog& source) {
  constexpr uint64_t kMaxConfig = 64 << 20;
  for (const Sidecar& sidecar : source.sidecars) {
    if (io::base_name(sidecar.name) != "config.json" || sidecar.text) continue;
    const auto config =
        text::parse_or_discard(io::read_file(sidecar.path, kMaxConfig));
    if (!config.is_object()) continue;
    const auto number = [&](const char* key) -> uint64_t {
      const auto found = config.find(key);
      return found != config.end() && found->is_number_unsigned()
                 ? found->get<uint64_t>()
                 : 0;
    };
    const auto named = config.find("model_type");
    const std::string type =
        named != config.end() && named->is_string() ? *named : "";
    if (type != "llama" && type != "qwen3")
      throw unfaithful_error(
          {sidecar.path, {}},
          "model_type {}: between torchtitan's names and those of "
          "transformers, llama and qwen3 are known",
          printable(type))
          .with_hint("lightning and accelerate keep names as they are");
    Heads heads{.queries = number("num_attention_heads"),
                .keys = number("num_key_value_heads"),
                .pairs = type == "llama"};
    if (heads.keys == 0) heads.keys = heads.queries;
    if (heads.keys == 0 || heads.queries % heads.keys != 0)
      throw unfaithful_error({sidecar.path, {}},
                             "{} heads of queries and {} of keys",
                             heads.queries, heads.keys);
    return heads;
  }
  throw unfaithful_error(
      {source.path, {}},
      "torchtitan's projections are arranged by heads, and no config.json "
      "says how many there are")
      .with_hint(
          "--config-from DIR names a folder with the model's config.json");
}

// Rearranges each head's rows: two halves become pairs, or the reverse.
View turn(const View& view, uint64_t heads, bool to_pairs) {
  const Shape& shape = view.shape();
  if (shape.size() != 2 || shape[0] % (2 * heads) != 0)
    throw unfaithful_error({}, "shape {} is not of {} heads", to_string(shape),
                           heads);
  const uint64_t half = shape[0] / heads / 2;
  const Shape split = to_pairs ? Shape({heads, 2, half, shape[1]})
                               : Shape({heads, half, 2, shape[1]});
  return view.reshape(split).permute({0, 2, 1, 3}).reshape(shape);
}

View fused(const std::array<View, 3>& three, const Heads& heads) {
  std::vector<View> groups;
  const uint64_t width = three[0].shape()[1];
  for (const View& one : three) {
    const uint64_t rows = one.shape()[0];
    if (rows % heads.keys != 0)
      throw unfaithful_error({}, "{} rows are not of {} groups of heads", rows,
                             heads.keys);
    groups.push_back(one.reshape({heads.keys, rows / heads.keys, width}));
  }
  const View all = View::concat(groups, 1);
  return all.reshape({all.shape()[0] * all.shape()[1], width});
}

std::array<View, 3> unfused(const View& view, const Heads& heads) {
  const Shape& shape = view.shape();
  const uint64_t each = heads.queries / heads.keys;
  if (shape.size() != 2 || shape[0] % (heads.keys * (each + 2)) != 0)
    throw unfaithful_error({}, "shape {} is not of {} and {} heads",
                           to_string(shape), heads.queries, heads.keys);
  const uint64_t size = shape[0] / heads.keys / (each + 2);
  const View groups = view.reshape({heads.keys, (each + 2) * size, shape[1]});
  const auto part = [&](uint64_t begin, uint64_t count) {
    return groups.slice(1, begin * size, count * size)
        .reshape({heads.keys * count * size, shape[1]});
  };
  return {part(0, each), part(each, 1), part(each + 1, 1)};
}

class Renaming {
 public:
  explicit Renaming(Catalog& source)
      : source_(source), heads_(heads_of(source)) {}

  void to_titan() {
    for (Tensor& tensor : source_.tensors)
      if (tensor.kind == Kind::model) {
        rearrange(tensor, tensor.name, true);
        rename(tensor, titan_name(tensor.name));
      }
    fuse();
    for (Tensor& tensor : source_.tensors)
      if (tensor.kind == Kind::optim && !has_titan(tensor.param))
        rename(tensor, titan_name(tensor.param));
    say();
  }

  void from_titan() {
    std::vector<Tensor> made;
    std::erase_if(source_.tensors, [&](const Tensor& tensor) {
      const auto parts = tensor.kind == Kind::optim
                             ? parts_of_fused(tensor.param)
                             : std::vector<std::string>();
      if (!parts.empty()) split(tensor, parts, made);
      return !parts.empty();
    });
    for (Tensor& tensor : source_.tensors)
      rename(tensor,
             hf_name(tensor.kind == Kind::optim ? tensor.param : tensor.name));
    std::ranges::move(made, std::back_inserter(source_.tensors));
    for (Tensor& tensor : source_.tensors)
      rearrange(tensor, tensor.kind == Kind::optim ? tensor.param : tensor.name,
                false);
    say();
  }

 private:
  static bool has_titan(const std::string& name) {
    return name.find(kFused) != name.npos;
  }

  void rename(Tensor& tensor, const std::string& name) const {
    const std::string before =
        tensor.kind == Kind::optim ? tensor.param : tensor.name;
    if (tensor.kind == Kind::other) return;
    if (name.empty())
      throw unfaithful_error({source_.path, printable(before)},
                             "has no counterpart that is known between "
                             "torchtitan and transformers")
          .with_hint("lightning and accelerate keep names as they are");
    if (tensor.kind == Kind::model) {
      tensor.name = name;
      return;
    }
    tensor.param = name;
    tensor.name = name + "." + tensor.state;
  }

  // Rearranges queries and keys; `name` is transformers' name.
  void rearrange(Tensor& tensor, const std::string& name, bool to_pairs) const {
    if (!heads_.pairs || tensor.shape.size() != 2) return;
    const auto layer = in_layer(name, kHfLayers);
    if (!layer) return;
    if (layer->rest == kLayer[0].hf)
      into(turn(View::of(tensor), heads_.queries, to_pairs), tensor);
    if (layer->rest == kLayer[1].hf)
      into(turn(View::of(tensor), heads_.keys, to_pairs), tensor);
  }

  static void into(const View& view, Tensor& tensor) {
    tensor.pieces.clear();
    tensor.grid.clear();
    view.into(tensor);
    tensor.tie = 0;
  }

  // Turns the states of three parameters into those of one.
  void fuse() {
    std::map<std::string, std::map<std::string, std::array<const Tensor*, 3>>>
        all;
    for (const Tensor& tensor : source_.tensors)
      if (tensor.kind == Kind::optim)
        if (const std::string name = fused_of(tensor.param); !name.empty()) {
          const auto layer = in_layer(tensor.param, kHfLayers);
          for (size_t i = 0; i < 3; ++i)
            if (layer->rest == kLayer[i].hf)
              all[name][tensor.state][i] = &tensor;
        }
    std::vector<Tensor> made;
    for (const auto& [name, states] : all)
      for (const auto& [state, three] : states)
        made.push_back(fuse(name, state, three));
    std::erase_if(source_.tensors, [](const Tensor& tensor) {
      return tensor.kind == Kind::optim && !fused_of(tensor.param).empty();
    });
    std::ranges::move(made, std::back_inserter(source_.tensors));
  }

  Tensor fuse(const std::string& name, const std::string& state,
              const std::array<const Tensor*, 3>& three) {
    for (const Tensor* one : three)
      if (one == nullptr)
        throw unfaithful_error({source_.path, printable(name)},
                               "torchtitan trains queries, keys and values in "
                               "one; not all of them have {}",
                               printable(state));
    Tensor made = *three[0];
    made.param = name;
    made.name = name + "." + state;
    if (made.shape.empty()) {
      for (size_t i = 1; i < 3; ++i)
        source_.redundant.push_back(
            {*three[i],
             {},
             *three[0],
             "torchtitan trains them in one parameter, which has one step"});
      return made;
    }
    for (const Tensor* one : three)
      if (one->shape.size() != 2)
        throw unfaithful_error({source_.path, printable(one->name)},
                               "has shape {}, a projection's has two "
                               "dimensions",
                               to_string(one->shape));
    std::array<View, 3> views = {View::of(*three[0]), View::of(*three[1]),
                                 View::of(*three[2])};
    if (heads_.pairs) {
      views[0] = turn(views[0], heads_.queries, true);
      views[1] = turn(views[1], heads_.keys, true);
    }
    into(fused(views, heads_), made);
    return made;
  }

  void split(const Tensor& tensor, const std::vector<std::string>& parts,
             std::vector<Tensor>& made) const {
    const auto add = [&](size_t i) -> Tensor& {
      Tensor& one = made.emplace_back(tensor);
      one.param = parts[i];
      one.name = parts[i] + "." + tensor.state;
      return one;
    };
    if (tensor.shape.empty()) {
      for (size_t i = 0; i < 3; ++i) add(i);
      return;
    }
    const auto views = unfused(View::of(tensor), heads_);
    for (size_t i = 0; i < 3; ++i) into(views[i], add(i));
  }

  void say() {
    source_.assumptions.push_back(fmt::format(
        "torchtitan: projections by {} and {} heads, as config.json says",
        heads_.queries, heads_.keys));
  }

  Catalog& source_;
  const Heads heads_;
};

bool any_model(const Catalog& source, std::string_view word) {
  return std::ranges::any_of(source.tensors, [&](const Tensor& tensor) {
    return tensor.kind == Kind::model &&
           tensor.name.find(word) != tensor.name.npos;
  });
}

}  // namespace

bool has_titan_names(const Catalog& source) {
  return any_model(source, ".attention.qkv_linear.wq.");
}

bool has_transformers_names(const Catalog& source) {
  return any_model(source, ".self_attn.q_proj.");
}

bool has_own_names(const Catalog& catalog) { return has_titan_names(catalog); }

void take_transformers_names(Catalog& catalog) {
  from_titan(catalog);
  catalog.dialect = "hf";
}

void to_titan(Catalog& source) { Renaming(source).to_titan(); }
void from_titan(Catalog& source) { Renaming(source).from_titan(); }

std::vector<std::string> names_of_other(const std::string& parameter) {
  if (auto parts = parts_of_fused(parameter); !parts.empty()) return parts;
  if (std::string fused = fused_of(parameter); !fused.empty())
    return {std::move(fused)};
  for (std::string name : {titan_name(parameter), hf_name(parameter)})
    if (!name.empty()) return {std::move(name)};
  return {};
}

}  // namespace ckpt::runs
