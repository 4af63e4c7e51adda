// SPDX-License-Identifier: Apache-2.0
// Read from nanotron 0.4's models/llama.py, and from models/llama.py,
// models/qwen.py, nn/rotary.py and config/models_config.py of its main branch
// with their history.
#include "formats/runs/models/nanotron_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/other_json.h"

namespace ckpt::runs {
namespace {

using text::printable;
using Json = nlohmann::json;

constexpr uint64_t kLargestConfig = 64 << 20;
constexpr uint64_t kMostHeads = 65'536;
constexpr uint64_t kMostLayers = 65'536;
constexpr const char* kKeep = "--dialect keep keeps nanotron's names";

// What transformers' configurations have under the same name.
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

// What the other keys say is read below, or is of training and of the kernels
// that compute the same.
constexpr const char* kLlamaElse[] = {
    "is_llama_config", "rope_interleaved",   "interleaved_rotary",
    "z_loss_enabled",  "z_loss_coefficient", "_attn_implementation",
};
constexpr const char* kQwenElse[] = {
    "is_qwen2_config",
    "rope_interleaved",
    "rope_seq_len_interpolation_factor",
    "no_rope_layer",
    "z_loss_enabled",
    "z_loss_coefficient",
    "log_attn_probs",
    "ring_attn_heads_k_stride",
    "_attn_implementation",
    "_fused_rotary_emb",
    "_fused_rms_norm",
    "_use_qkv_packed",
    "_use_doc_masking",
};

bool is_in(std::span<const char* const> list, const std::string& key) {
  return std::ranges::any_of(list, [&](const char* one) { return key == one; });
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

uint64_t number(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_unsigned()
             ? found->get<uint64_t>()
             : 0;
}

class Reading {
 public:
  explicit Reading(const Catalog& source) : source_(source) {}

  NanotronModel run() {
    open();
    if (!qwen_) check_scaling();
    check_keys();
    open_beside();
    read_heads();
    if (qwen_)
      read_qwen();
    else
      read_pairs();
    check_vocabulary();
    const Json made = make_config();
    if (beside_ == nullptr)
      model_.config = made.dump(2) + "\n";
    else
      compare(made);
    return std::move(model_);
  }

 private:
  [[noreturn]] void fail(const std::string& what,
                         const std::string& hint) const {
    throw unfaithful_error({source_.path, {}}, "model_config.json {}", what)
        .with_hint(hint);
  }

  void open() {
    path_ = find_beside(source_, "model_config.json");
    if (path_.empty()) {
      path_ = source_.path;
      fail(
          "nanotron's projections are arranged as model_config.json says, "
          "which is not there",
          "put the file of another step of this run into the step");
    }
    own_ = text::parse_or_discard(io::read_file(path_, kLargestConfig));
    const auto says = [&](const char* key) {
      return own_.is_object() && own_.value(key, Json()) == true;
    };
    qwen_ = says("is_qwen2_config");
    if (qwen_ == says("is_llama_config"))
      fail(
          "is of another model than Llama and Qwen2, the only ones that are "
          "known between nanotron's names and those of transformers",
          kKeep);
  }

  // Spectral muP divides the scores by the heads' size, not by its root; in
  // Llama only.
  void check_scaling() const {
    const std::string job = find_beside(source_, "config.yaml");
    if (job.empty()) return;
    const std::string text = io::read_file(job, kLargestConfig);
    if (text.find("use_mup: true") != text.npos)
      throw unfaithful_error({job, {}},
                             "use_mup: attention is scaled otherwise than in "
                             "transformers' llama")
          .with_hint(kKeep);
  }

  // A key that is not known may change what the model computes. So do a
  // sliding window, which main's Qwen2 ignored before June 2025, experts and
  // masks by flex_attention.
  void check_keys() const {
    for (const auto& [key, value] : own_.items()) {
      const bool off = value.is_null() || value == false;
      const bool known = is_in(kSame, key) ? qwen_ || key != "attention_bias"
                                           : (qwen_ ? is_in(kQwenElse, key)
                                                    : is_in(kLlamaElse, key));
      if (off || known) continue;
      fail(fmt::format("has {} {}, and that transformers' {} computes the same "
                       "is not known",
                       printable(key), printable(value.dump()),
                       qwen_ ? "Qwen2 or SmolLM3" : "Llama"),
           kKeep);
    }
  }

  void open_beside() {
    beside_ = find_config(source_);
    if (beside_ == nullptr) return;
    other_ =
        text::parse_or_discard(io::read_file(beside_->path, kLargestConfig));
    if (!other_.is_object()) other_ = Json::object();
  }

  uint64_t own(const char* key) const { return number(own_, key); }

  void read_heads() {
    model_.width = own("hidden_size");
    model_.queries = own("num_attention_heads");
    model_.keys = own("num_key_value_heads");
    model_.heads_said = "model_config.json";
    if (model_.queries == 0) {
      model_.queries = number(other_, "num_attention_heads");
      model_.keys = number(other_, "num_key_value_heads");
      model_.heads_said = "config.json";
    }
    if (model_.queries == 0)
      fail(
          "says no num_attention_heads, by which nanotron's projections are "
          "arranged",
          "--config-from DIR names a folder with the model's config.json");
    if (model_.keys == 0) model_.keys = model_.queries;
    if (model_.queries > kMostHeads || model_.queries % model_.keys != 0 ||
        model_.width == 0 || model_.width % model_.queries != 0)
      fail(fmt::format("has hidden_size {}, and {} has {} heads of queries and "
                       "{} of keys",
                       model_.width, model_.heads_said, model_.queries,
                       model_.keys),
           "it is of another model, or damaged");
  }

  // Before that key there was, nanotron trained by adjacent pairs alone.
  void read_pairs() {
    const Json said = own_.value("rope_interleaved",
                                 own_.value("interleaved_rotary", Json()));
    if (!said.is_boolean() && !said.is_null())
      fail("has rope_interleaved " + printable(said.dump()),
           "true or false, as nanotron writes it");
    model_.pairs = said.is_boolean() ? said.get<bool>() : true;
  }

  bool said(const char* key) const {
    const Json value = own_.value(key, Json());
    if (!value.is_boolean())
      fail(fmt::format("says {} for {}", printable(value.dump()), key),
           "true or false, as nanotron writes it");
    return value.get<bool>();
  }

  // Until 23 March 2025 rotary pairs were of no kind that transformers has,
  // whatever rope_interleaved said; from 30 March on, a step that says
  // _use_qkv_packed was computed by flash-attn's rotary embedding.
  void read_qwen() {
    if (own_.value("_use_qkv_packed", Json()) != true)
      fail(
          "does not say _use_qkv_packed true, without which nanotron's Qwen2 "
          "has computed rotary embeddings in several ways",
          kKeep);
    model_.pairs = said("rope_interleaved");
    model_.biased = said("attention_bias");
    if (const Json every = own_.value("no_rope_layer", Json());
        !every.is_null()) {
      model_.no_rope = own("no_rope_layer");
      const uint64_t layers = own("num_hidden_layers");
      if (model_.no_rope == 0 || layers == 0 || layers > kMostLayers ||
          layers % model_.no_rope != 0)
        fail(fmt::format("has no_rope_layer {} and num_hidden_layers {}",
                         printable(every.dump()), layers),
             "it is of another model, or damaged");
      if (model_.biased)
        fail(
            "has no_rope_layer and attention_bias, which transformers' SmolLM3 "
            "would have on o_proj, too",
            kKeep);
    }
    const Json factor = scaling();
    if (!factor.is_null() && !(factor.is_number() && factor > 0))
      fail("has rope_seq_len_interpolation_factor " + printable(factor.dump()),
           "a positive number, as nanotron writes it");
  }

  // Positions are divided by that; null: they are not.
  Json scaling() const {
    return qwen_ ? own_.value("rope_seq_len_interpolation_factor", Json())
                 : Json();
  }

  // nanotron writes the padded size there, so that the two agree.
  void check_vocabulary() const {
    const Tensor* weight = embedding();
    const uint64_t size = own("vocab_size");
    if (weight == nullptr || size == 0 || weight->shape.empty() ||
        weight->shape[0] == size)
      return;
    fail(fmt::format("has vocab_size {}, and the embedding {} rows", size,
                     weight->shape[0]),
         "it is of another model, or damaged");
  }

  const Tensor* embedding() const {
    const auto found =
        std::ranges::find(source_.tensors, kNanotronEmbedding, &Tensor::name);
    return found == source_.tensors.end() ? nullptr : &*found;
  }

  Json make_config() {
    const char* type = "llama";
    const char* name = "LlamaForCausalLM";
    if (model_.no_rope) {
      type = "smollm3";
      name = "SmolLM3ForCausalLM";
    } else if (model_.biased) {
      type = "qwen2";
      name = "Qwen2ForCausalLM";
    }
    Json config = {{"architectures", {name}}, {"model_type", type}};
    for (const char* key : kSame)
      if (own_.contains(key)) config[key] = own_[key];
    config["num_attention_heads"] = model_.queries;
    config["num_key_value_heads"] = model_.keys;
    // 0.4 computes rotary embeddings by this base, and scales none.
    if (!own_.contains("rope_theta")) config["rope_theta"] = 10000.0;
    if (const Json scaled = own_.value("rope_scaling", Json());
        !scaled.is_null()) {
      config["rope_scaling"] = nullptr;
      model_.problems.push_back(
          warning("config", {path_, {}},
                  "rope_scaling is {}, which nanotron's model does not apply: "
                  "config.json says none",
                  printable(scaled.dump())));
    }
    if (qwen_) add_qwen(config);
    if (const Tensor* weight = embedding()) {
      const DType dtype = weight->dtype;
      config["torch_dtype"] = dtype == DType::bf16  ? "bfloat16"
                              : dtype == DType::f16 ? "float16"
                                                    : "float32";
    }
    return config;
  }

  // Where transformers' defaults are not nanotron's, both are said.
  void add_qwen(Json& config) const {
    for (const auto& [key, value] :
         {std::pair<const char*, Json>("tie_word_embeddings", false),
          {"max_position_embeddings", 2048},
          {"pad_token_id", nullptr}})
      if (!config.contains(key)) config[key] = value;
    if (model_.biased) config.erase("attention_bias");
    if (model_.biased || model_.no_rope) config["use_sliding_window"] = false;
    if (const Json factor = scaling(); !factor.is_null())
      config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
    if (!model_.no_rope) return;
    Json layers = Json::array();
    for (uint64_t i = 1; i <= own("num_hidden_layers"); ++i)
      layers.push_back(i % model_.no_rope ? 1 : 0);
    config["no_rope_layers"] = std::move(layers);
    config["no_rope_layer_interval"] = model_.no_rope;
  }

  // What both files say must be the same.
  void compare(const Json& made) const {
    if (other_.value("model_type", Json()) != made["model_type"])
      throw unfaithful_error({beside_->path, {}}, "is not of a {}, and {} is",
                             made["model_type"].get<std::string>(),
                             printable(path_));
    for (const char* key : kSame) {
      if (std::string_view(key).ends_with("token_id") ||
          std::string_view(key) == "pretraining_tp" || !own_.contains(key) ||
          !own_[key].is_number_integer())
        continue;
      check_same(key, own_[key], other_.value(key, Json()));
    }
    if (!qwen_) return;
    // transformers 5 writes the base and the scaling into rope_parameters.
    const Json rope = other_.value(
        "rope_parameters", other_.value("rope_scaling", Json::object()));
    const auto in_rope = [&](const char* key) {
      return rope.is_object() ? rope.value(key, Json()) : Json();
    };
    check_same("rope_theta", made["rope_theta"],
               other_.value("rope_theta", in_rope("rope_theta")));
    const Json type =
        in_rope("rope_type").is_null() ? in_rope("type") : in_rope("rope_type");
    check_same("rope_type", scaling().is_null() ? "default" : "linear",
               type.is_null() ? Json("default") : type);
    if (!scaling().is_null())
      check_same("factor", scaling(), in_rope("factor"));
    for (const char* key : {"use_sliding_window", "no_rope_layers"})
      if (made.contains(key))
        check_same(key, made[key], other_.value(key, Json()));
    check_same("rms_norm_eps", made.value("rms_norm_eps", Json()),
               other_.value("rms_norm_eps", Json()));
  }

  // One that is not said is not compared.
  void check_same(const char* key, const Json& mine, const Json& its) const {
    if (mine.is_null() || its.is_null() || mine == its) return;
    throw unfaithful_error({beside_->path, {}}, "{} is {}, and {} in {}", key,
                           printable(its.dump()), printable(mine.dump()),
                           printable(path_))
        .with_hint("give the config.json of this very model");
  }

  const Catalog& source_;
  NanotronModel model_;
  Json own_, other_ = Json::object();
  const Sidecar* beside_ = nullptr;
  std::string path_;
  bool qwen_ = false;
};

}  // namespace

NanotronModel read_nanotron_model(const Catalog& source) {
  return Reading(source).run();
}

}  // namespace ckpt::runs
