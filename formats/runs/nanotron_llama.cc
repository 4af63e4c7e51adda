// SPDX-License-Identifier: Apache-2.0
// Read from nanotron 0.4's models/llama.py and its main branch, and from its
// examples/llama/convert_nanotron_to_hf.py.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/own_names.h"
#include "formats/runs/titan_views.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/number.h"
#include "lib/text/other_json.h"

namespace ckpt::runs {
namespace {

using families::View;
using text::printable;
using Json = nlohmann::json;

constexpr uint64_t kLargestConfig = 64 << 20;
constexpr uint64_t kMostHeads = 65'536;
constexpr std::string_view kLayers = "model.decoder.";
constexpr std::string_view kPipeline = "pp_block.";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

struct Pair {
  std::string_view nanotron, hf;
};
constexpr Pair kTop[] = {
    {"model.token_position_embeddings.pp_block.token_embedding.weight",
     kEmbedding},
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
constexpr std::string_view kGateUp = "mlp.gate_up_proj.weight";

// What transformers' LlamaConfig has under the same name.
constexpr const char* kSame[] = {
    "bos_token_id",        "eos_token_id",
    "hidden_act",          "hidden_size",
    "initializer_range",   "intermediate_size",
    "num_attention_heads", "max_position_embeddings",
    "num_hidden_layers",   "num_key_value_heads",
    "pad_token_id",        "pretraining_tp",
    "rms_norm_eps",        "rope_scaling",
    "rope_theta",          "tie_word_embeddings",
    "use_cache",           "vocab_size",
    "attention_bias",
};

// What the other keys of its LlamaConfig say is read above, or is of training
// and of the kernels that compute the same.
constexpr const char* kElse[] = {
    "is_llama_config", "rope_interleaved",   "interleaved_rotary",
    "z_loss_enabled",  "z_loss_coefficient", "_attn_implementation",
};

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

const Sidecar* find_config(const Catalog& source) {
  const auto found =
      std::ranges::find_if(source.sidecars, [&](const Sidecar& sidecar) {
        return io::base_name(sidecar.name) == "config.json" && !sidecar.text;
      });
  return found == source.sidecars.end() ? nullptr : &*found;
}

// In the step, or beside the file that it became; "" if it isn't there.
std::string find_beside(const Catalog& source, const char* name) {
  const std::string folder =
      io::is_directory(source.path) ? source.path : io::parent(source.path);
  std::string path = io::join(folder, name);
  return io::is_file(path) ? path : std::string();
}

class FromNanotron {
 public:
  explicit FromNanotron(Catalog& source) : source_(source) {}

  void run() {
    read_config();
    for (const Tensor& tensor : source_.tensors) {
      if (tensor.kind == Kind::other)
        made_.push_back(tensor);
      else
        take(tensor);
    }
    check_vocabulary();
    if (!beside_) add_config();
    source_.tensors = std::move(made_);
    source_.assumptions.push_back(fmt::format(
        "nanotron: projections by {} and {} heads, as {} says; rotary pairs {}",
        queries_, keys_, heads_said_,
        pairs_ ? "are adjacent" : "are halves, as in transformers"));
  }

 private:
  [[noreturn]] void fail(const std::string& what,
                         const std::string& hint) const {
    throw unfaithful_error({source_.path, {}}, "model_config.json {}", what)
        .with_hint(hint);
  }

  void read_config() {
    path_ = find_beside(source_, "model_config.json");
    if (path_.empty()) {
      path_ = source_.path;
      fail(
          "nanotron's projections are arranged as model_config.json says, "
          "which is not there",
          "put the file of another step of this run into the step");
    }
    own_ = text::parse_or_discard(io::read_file(path_, kLargestConfig));
    if (!own_.is_object() || own_.value("is_llama_config", Json()) != true)
      fail(
          "is of another model than Llama, the only one that is known between "
          "nanotron's names and those of transformers",
          "--dialect keep keeps nanotron's names");
    check_scaling();
    check_keys();
    beside_ = find_config(source_);
    if (beside_ != nullptr) {
      other_ =
          text::parse_or_discard(io::read_file(beside_->path, kLargestConfig));
      if (!other_.is_object() || other_.value("model_type", Json()) != "llama")
        throw unfaithful_error({beside_->path, {}},
                               "is not of a llama, and {} is",
                               printable(path_));
      compare();
    }
    width_ = number("hidden_size");
    queries_ = number("num_attention_heads");
    heads_said_ = "model_config.json";
    if (own_.contains("num_key_value_heads") || queries_ != 0)
      keys_ = number("num_key_value_heads");
    if (queries_ == 0 && other_.is_object()) {
      queries_ = number(other_, "num_attention_heads");
      keys_ = number(other_, "num_key_value_heads");
      heads_said_ = "config.json";
    }
    if (queries_ == 0)
      fail(
          "says no num_attention_heads, by which nanotron's projections are "
          "arranged",
          "--config-from DIR names a folder with the model's config.json");
    if (keys_ == 0) keys_ = queries_;
    if (queries_ > kMostHeads || queries_ % keys_ != 0 || width_ == 0 ||
        width_ % queries_ != 0)
      fail(fmt::format("has hidden_size {}, and {} has {} heads of queries and "
                       "{} of keys",
                       width_, heads_said_, queries_, keys_),
           "it is of another model, or damaged");
    read_rotary();
  }

  // Before that key there was, nanotron trained by adjacent pairs alone.
  void read_rotary() {
    const Json said = own_.value("rope_interleaved",
                                 own_.value("interleaved_rotary", Json()));
    if (!said.is_boolean() && !said.is_null())
      fail("has rope_interleaved " + printable(said.dump()),
           "true or false, as nanotron writes it");
    pairs_ = said.is_boolean() ? said.get<bool>() : true;
  }

  // Spectral muP divides the scores by the heads' size, not by its root.
  void check_scaling() const {
    const std::string job = find_beside(source_, "config.yaml");
    if (job.empty()) return;
    const std::string text = io::read_file(job, kLargestConfig);
    if (text.find("use_mup: true") != text.npos)
      throw unfaithful_error({job, {}},
                             "use_mup: attention is scaled otherwise than in "
                             "transformers' llama")
          .with_hint("--dialect keep keeps nanotron's names");
  }

  // A key that is not known may change what the model computes.
  void check_keys() const {
    const auto is_in = [](const auto& list, const std::string& key) {
      return std::ranges::any_of(list,
                                 [&](const char* one) { return key == one; });
    };
    for (const auto& [key, value] : own_.items()) {
      const bool off = value.is_null() || value == false;
      const bool known =
          is_in(kSame, key) ? key != "attention_bias" : is_in(kElse, key);
      if (off || known) continue;
      fail(fmt::format("has {} {}, and what it does to a Llama is not known",
                       printable(key), printable(value.dump())),
           "--dialect keep keeps nanotron's names");
    }
  }

  // What both files say must be the same.
  void compare() const {
    for (const char* key : kSame) {
      const auto mine = own_.find(key);
      const auto its = other_.find(key);
      if (mine == own_.end() || its == other_.end() || mine->is_null() ||
          its->is_null() || !mine->is_number_integer() || *mine == *its ||
          std::string_view(key).ends_with("token_id") ||
          std::string_view(key) == "pretraining_tp")
        continue;
      throw unfaithful_error({beside_->path, {}}, "{} is {}, and {} in {}", key,
                             its->dump(), mine->dump(), printable(path_))
          .with_hint("give the config.json of this very model");
    }
  }

  static uint64_t number(const Json& json, const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number_unsigned()
               ? found->get<uint64_t>()
               : 0;
  }
  uint64_t number(const char* key) const { return number(own_, key); }

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
                             "nanotron's Llama and that of transformers")
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
        qkv ? std::vector{queries_, keys_, keys_} : std::vector<uint64_t>{1, 1};
    const uint64_t all =
        std::accumulate(heads.begin(), heads.end(), uint64_t{0});
    if (tensor.shape.size() != 2 || tensor.shape[1] != width_ ||
        tensor.shape[0] % all != 0 ||
        (qkv && tensor.shape[0] / all != width_ / queries_))
      throw unfaithful_error(
          {source_.path, printable(tensor.name)},
          "has shape {}, {} says hidden_size {} and {} and {} heads",
          to_string(tensor.shape), heads_said_, width_, queries_, keys_);
    const uint64_t each = tensor.shape[0] / all;
    const View whole = View::of(tensor);
    uint64_t begin = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      View view = whole.slice(0, begin, heads[i] * each);
      begin += heads[i] * each;
      if (qkv && pairs_ && i < 2) view = titan::turn(view, heads[i], false);
      add(tensor, names[i], view);
    }
  }

  // nanotron writes the padded size there, so that the two agree.
  void check_vocabulary() const {
    const auto found = std::ranges::find(made_, kEmbedding, &Tensor::name);
    const uint64_t said = number("vocab_size");
    if (found == made_.end() || said == 0 || found->shape.empty() ||
        found->shape[0] == said)
      return;
    fail(fmt::format("has vocab_size {}, and the embedding {} rows", said,
                     found->shape[0]),
         "it is of another model, or damaged");
  }

  void add_config() {
    Json config = {{"architectures", {"LlamaForCausalLM"}},
                   {"model_type", "llama"}};
    for (const char* key : kSame)
      if (own_.contains(key)) config[key] = own_[key];
    config["num_attention_heads"] = queries_;
    config["num_key_value_heads"] = keys_;
    // 0.4 computes rotary embeddings by this base, and scales none.
    if (!own_.contains("rope_theta")) config["rope_theta"] = 10000.0;
    if (const Json scaling = own_.value("rope_scaling", Json());
        !scaling.is_null()) {
      config["rope_scaling"] = nullptr;
      source_.problems.push_back(
          warning("config", {path_, {}},
                  "rope_scaling is {}, which nanotron's model does not apply: "
                  "config.json says none",
                  printable(scaling.dump())));
    }
    const auto weight = std::ranges::find(made_, kEmbedding, &Tensor::name);
    if (weight != made_.end()) {
      const DType dtype = weight->dtype;
      config["torch_dtype"] = dtype == DType::bf16  ? "bfloat16"
                              : dtype == DType::f16 ? "float16"
                                                    : "float32";
    }
    auto text = std::make_shared<std::string>(config.dump(2) + "\n");
    source_.sidecars.push_back({.name = "config.json",
                                .path = io::join(source_.path, "config.json"),
                                .size = text->size(),
                                .text = std::move(text)});
  }

  Catalog& source_;
  std::vector<Tensor> made_;
  Json own_, other_;
  const Sidecar* beside_ = nullptr;
  std::string path_, heads_said_;
  uint64_t width_ = 0, queries_ = 0, keys_ = 0;
  bool pairs_ = true;
};

}  // namespace

bool has_nanotron_names(const Catalog& source) {
  return std::ranges::any_of(source.tensors, [](const Tensor& tensor) {
    const auto at = tensor.kind == Kind::model ? in_layer(tensor.name)
                                               : std::optional<InLayer>();
    return at && (at->rest == kQkv || at->rest == kGateUp);
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
  if (at->rest == kQkv)
    return {layer + "self_attn.q_proj.weight",
            layer + "self_attn.k_proj.weight",
            layer + "self_attn.v_proj.weight"};
  if (at->rest == kGateUp)
    return {layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"};
  return {};
}

void from_nanotron(Catalog& source) { FromNanotron(source).run(); }

}  // namespace ckpt::runs
