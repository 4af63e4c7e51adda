// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/family.h"

#include <algorithm>

#include "ckpt/error.h"
#include "formats/fairseq2/order.h"
#include "lib/io/file.h"
#include "lib/text/number.h"
#include "models/key_table.h"

namespace ckpt::fairseq2 {
namespace {

using families::Config;
using families::Rules;

constexpr std::string_view kEmbedding = "decoder_frontend.embed.weight";
constexpr std::string_view kAttention = "decoder.layers.0.self_attn.";

// The tp-local shapes of a stage's tensors, as the first tp rank has them.
class Shapes {
 public:
  Shapes(const Stage& stage, const Catalog& catalog, uint32_t dp)
      : stage_(stage), catalog_(catalog), dp_(dp) {}

  std::optional<Shape> find(std::string_view name) const {
    const auto key = std::ranges::find(stage_.keys, name, &Key::name);
    if (key == stage_.keys.end()) return std::nullopt;
    return join_dp(
               catalog_, key->name, parts_of(*key, 0), dp_,
               is_buffer(*key, Rules()) ? Sharding::kWhole : Sharding::kRows)
        .shape;
  }
  std::optional<Shape> attention(std::string_view name) const {
    return find(std::string(kAttention) + std::string(name));
  }
  bool has_part(std::string_view text) const {
    return std::ranges::any_of(stage_.keys, [text](const Key& key) {
      return key.name.find(text) != key.name.npos;
    });
  }
  bool has_prefix(std::string_view text) const {
    return std::ranges::any_of(stage_.keys, [text](const Key& key) {
      return key.name.starts_with(text);
    });
  }
  // The width of a norm over the model, which is never split.
  std::optional<uint64_t> width() const {
    for (const std::string_view name :
         {"decoder.layers.0.self_attn_layer_norm.weight",
          "decoder.layers.0.ffn_layer_norm.weight",
          "decoder.layer_norm.weight"}) {
      if (const auto shape = find(name); shape && shape->size() == 1)
        return (*shape)[0];
    }
    return std::nullopt;
  }

 private:
  const Stage& stage_;
  const Catalog& catalog_;
  uint32_t dp_;
};

// The number of decoder layers, from the largest index.
int64_t count_layers(const Stage& stage) {
  constexpr std::string_view kPrefix = "decoder.layers.";
  int64_t count = 0;
  for (const Key& key : stage.keys) {
    if (!key.name.starts_with(kPrefix)) continue;
    std::string_view rest = std::string_view(key.name).substr(kPrefix.size());
    const auto index = text::take_number(rest, INT32_MAX - 1);
    count = std::max(count, static_cast<int64_t>(index.value_or(0)) + 1);
  }
  return count;
}

std::optional<Inferred> infer_by_norm(const Shapes& shapes, uint32_t tp,
                                      const std::optional<uint32_t>& embed) {
  const auto norm = shapes.attention("q_norm.weight");
  const auto q = shapes.attention("q_proj.weight");
  if (!norm || !q || norm->size() != 1 || q->size() != 2) return std::nullopt;
  const uint64_t rows = (*q)[0];
  // One head per rank allows both when nothing is split.
  if ((*norm)[0] == rows && tp == 1) return std::nullopt;
  if (const auto all = checked_mul(rows, tp); all && (*norm)[0] == *all) {
    if (!embed) return std::nullopt;
    return Inferred{"olmo",
                    {{"shard_embed_dim", *embed == 1}},
                    "self_attn.q_norm is as wide as all heads"};
  }
  if ((*norm)[0] != 0 && rows % (*norm)[0] == 0)
    return Inferred{"qwen", {}, "self_attn.q_norm is as wide as a head"};
  return std::nullopt;
}

std::string above(const std::string& directory) {
  const std::string name = io::base_name(directory);
  const bool relative = name.empty() || name == "." || name == "..";
  return relative ? io::join(directory, "..") : io::parent(directory);
}

// The embedding shows if a configuration is another model's.
void check_embedding(const Rules& rules, const std::optional<uint32_t>& shown,
                     const Catalog& catalog) {
  const TpRule rule = rules.tp(kEmbedding);
  if (!shown || rule.state == TpRule::State::kUnknown) return;
  const bool split = rule.state == TpRule::State::kSplit;
  if (split ? rule.dim == *shown : *shown == 0) return;
  throw input_error(
      {catalog.path, std::string(kEmbedding)},
      "its width next to the norms' shows a cut along dimension {}, but {} "
      "says {}",
      *shown, rules.source(),
      split ? fmt::format("dimension {}", rule.dim) : "it is not split")
      .with_hint("--shard-dims RULES.json overrides single tensors");
}

void tell(Catalog& catalog, std::string line) {
  catalog.assumptions.push_back(std::move(line));
}

}  // namespace

std::optional<std::string> find_model_yaml(const Location& location) {
  std::string directory = location.path;
  const int levels = location.level == Level::kModel ? 3 : 2;
  for (int level = 0; level < levels; ++level) {
    const std::string path = io::join(directory, "model.yaml");
    if (io::is_file(path)) return path;
    directory = above(directory);
  }
  return std::nullopt;
}

std::optional<uint32_t> embedding_dim(const Stage& stage,
                                      const Catalog& catalog, uint32_t tp,
                                      uint32_t dp) {
  const Shapes shapes(stage, catalog, dp);
  const auto width = shapes.width();
  const auto embed = shapes.find(kEmbedding);
  if (tp == 1 || !width || !embed || embed->size() != 2) return std::nullopt;
  if ((*embed)[1] == *width) return 0;
  const auto whole = checked_mul((*embed)[1], tp);
  return whole && *whole == *width ? std::optional(1u) : std::nullopt;
}

std::optional<Inferred> infer_family(const Stage& stage, const Catalog& catalog,
                                     uint32_t tp, uint32_t dp) {
  const Shapes shapes(stage, catalog, dp);
  if (!shapes.has_prefix("decoder.layers.") || shapes.has_prefix("encoder") ||
      shapes.has_part(".experts."))
    return std::nullopt;
  if (shapes.has_part(".altup.") && shapes.has_part(".laurel."))
    return Inferred{"gemma3n",
                    {{"num_layers", count_layers(stage)}},
                    "altup and laurel modules"};
  const auto embed = embedding_dim(stage, catalog, tp, dp);
  if (embed == 1u && !shapes.attention("q_norm.weight") &&
      !shapes.attention("q_proj.bias"))
    return Inferred{"llama",
                    {{"shard_embed_dim", true}},
                    "the embedding is cut along dimension 1"};
  if (embed == 1u && shapes.attention("q_proj.bias")) return std::nullopt;
  if (shapes.attention("q_proj.bias") && !shapes.attention("output_proj.bias"))
    return Inferred{"qwen", {}, "self_attn.q_proj has a bias"};
  return infer_by_norm(shapes, tp, embed);
}

Rules choose_rules(const formats::ReadOptions& options,
                   const std::optional<ModelYaml>& yaml, const Stage& stage,
                   Catalog& catalog) {
  Rules user;
  if (!options.shard_dims_file.empty()) {
    user = Rules::from_file(options.shard_dims_file);
    tell(catalog, "shard dimensions: " + user.source());
  }
  const Topology& grid = catalog.topology;
  const bool overridden =
      yaml && !options.family.empty() && options.family != yaml->family;
  Config config = yaml && !overridden ? yaml->config : Config();
  std::string family = options.family;
  std::string source = "--family";
  if (family.empty() && yaml) {
    family = yaml->family;
    source = yaml->path;
  }
  catalog.family = family;

  if (options.family.empty() && !Rules::is_family(family)) {
    const auto found = infer_family(stage, catalog, grid.tp, grid.dp);
    if (!found) return user;
    source = "inferred: " + found->why;
    family = found->family;
    if (catalog.family.empty()) catalog.family = family;
    config.insert(found->config.begin(), found->config.end());
  }
  // A split embedding shows what the configuration leaves out.
  const auto dim = embedding_dim(stage, catalog, grid.tp, grid.dp);
  if (dim && !config.contains("shard_embed_dim"))
    config["shard_embed_dim"] = *dim == 1;

  const Rules rules = Rules::for_family(family, config, source);
  tell(catalog,
       "family " + family + ": " + source +
           (overridden ? ", not " + yaml->family + " as " + yaml->path + " says"
                       : ""));
  for (const std::string& line : rules.assumptions()) tell(catalog, line);
  const Rules all = user.over(rules);
  check_embedding(all, dim, catalog);
  return all;
}

void check_config(const formats::ReadOptions& options, const ModelYaml& yaml,
                  const Catalog& catalog) {
  if (!options.family.empty() && options.family != yaml.family) return;
  const auto table = families::KeyTable::for_family(yaml.family, yaml.config);
  uint64_t layers = 0;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model) continue;
    const auto shape = table.shape(tensor.name);
    if (shape && *shape != tensor.shape)
      throw input_error({catalog.path, tensor.name},
                        "the files make up {}, {} makes it {}",
                        to_string(tensor.shape), yaml.path, to_string(*shape))
          .with_hint("files are missing, or model.yaml is another model's");
    const LayerName layer = layer_of(tensor.name);
    if (layer.stack == "decoder") layers = std::max(layers, layer.index + 1);
  }
  const auto expected = families::whole_number(yaml.config, "num_layers");
  if (!expected || layers == 0 || *expected <= layers) return;
  throw input_error({catalog.path, {}}, "holds {} layers, {} says {}", layers,
                    yaml.path, *expected)
      .with_hint(
          "a pipeline stage (pp_NN) is missing, or model.yaml is "
          "another model's");
}

}  // namespace ckpt::fairseq2
