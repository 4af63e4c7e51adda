// SPDX-License-Identifier: Apache-2.0
#include "formats/vllm/fuse.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "formats/vllm/config.h"
#include "formats/vllm/layout.h"
#include "formats/vllm/models.h"
#include "lib/text/number.h"
#include "models/hf_names.h"
#include "models/view.h"

namespace ckpt::vllm {
namespace {

using families::View;

class Fuser {
 public:
  explicit Fuser(Catalog source) : source_(std::move(source)) {}

  Catalog fuse() {
    config_ = config_of(source_);
    model_ = model_of(source_, config_);
    if (const auto config = formats::config_json_of(source_);
        model_->experts && families::has_module_names(source_, config))
      families::take_hf_names(source_, config, families::HfNames::kHub);
    settle_head();
    for (const Tensor& tensor : source_.tensors)
      by_name_.emplace(tensor.name, &tensor);
    if (!model_->needs.empty() && !by_name_.contains(model_->needs))
      throw unfaithful_error({source_.path, std::string(model_->needs)},
                             "is not there: vLLM's {} has it always",
                             model_->type);
    // Views add files to a catalog; in the end these go to the result.
    for (const Tensor& tensor : source_.tensors) take(tensor);
    source_.tensors = std::move(fused_);
    source_.dialect = "vllm";
    return std::move(source_);
  }

 private:
  Tensor* find(std::string_view name) {
    const auto found = std::ranges::find(source_.tensors, name, &Tensor::name);
    return found == source_.tensors.end() ? nullptr : &*found;
  }

  // One tensor under two names is saved once. If the source also has a head, it
  // must be equal.
  void settle_head() {
    if (!config_->tied.value_or(model_->tied)) return;
    Tensor* embedding = find(kEmbedding);
    Tensor* head = find(kHead);
    if (!embedding) return;
    if (head) {
      if (head->dtype != embedding->dtype || head->shape != embedding->shape)
        throw unfaithful_error(
            {source_.path, head->name},
            "is {} {}, {} is {} {}; config.json says that they are one tensor",
            name(head->dtype), to_string(head->shape), embedding->name,
            name(embedding->dtype), to_string(embedding->shape));
      source_.redundant.push_back(
          {*head, {}, *embedding, "config.json: tie_word_embeddings"});
    }
    if (model_->head) embedding->name = kHead;
    source_.assumptions.push_back(
        fmt::format("the embeddings are tied (tie_word_embeddings): one "
                    "tensor, {}",
                    embedding->name));
    if (head)
      source_.tensors.erase(source_.tensors.begin() +
                            (head - source_.tensors.data()));
    // Move it to the place of a model's last tensor.
    if (!model_->head) return;
    const auto first = std::ranges::find(source_.tensors, kHead, &Tensor::name);
    std::rotate(first, first + 1, source_.tensors.end());
  }

  void take(const Tensor& tensor) {
    if (tensor.name.ends_with(".rotary_emb.inv_freq")) {
      source_.assumptions.push_back(tensor.name +
                                    " is left out: vLLM computes it");
      return;
    }
    if (model_->experts && take_expert(tensor)) return;
    for (const Fusion& fusion : model_->fusions)
      for (size_t i = 0; i < fusion.from.size(); ++i)
        if (const auto whole = joined(tensor, fusion, fusion.from[i])) {
          if (i == 0) keep(*whole);
          return;
        }
    keep(tensor);
    if (tensor.name == kEmbedding || tensor.name == kHead ||
        tensor.name == kHeadBias)
      pad(fused_.back());
    if (tensor.name.ends_with(kOutput)) add_scales(tensor.name);
  }

  // Keeps a tensor under vLLM's name. What vLLM does not look for is not part
  // of its model.
  void keep(Tensor tensor) {
    // A base model alone (LlamaModel) has its layers at the top.
    if (!tensor.name.starts_with("model.") && tensor.name != kHead &&
        tensor.name != kHeadBias)
      throw unfaithful_error({source_.path, tensor.name},
                             "vLLM's {} has such a name below \"model.\" only",
                             model_->type)
          .with_hint(
              "a base model's names get it by --rename with a file of "
              "{\"*\": \"model.*\"}; --exclude leaves out what vLLM does not "
              "need");
    arrange(tensor);
    tensor.name = vllm_name(*model_, std::move(tensor.name));
    if (role_of(tensor.name, tensor.dtype, tensor.shape,
                config_->blocks.has_value()) == Role::kUnknown)
      throw unfaithful_error({source_.path, tensor.name},
                             "it is not known what vLLM does with it in a "
                             "model of type {}",
                             model_->type)
          .with_hint("if it is not needed leave it out with --exclude");
    if (const auto layer = layer_of(tensor.name);
        layer && config_->layers && *layer >= *config_->layers)
      throw unfaithful_error({source_.path, tensor.name},
                             "a layer for predicting more tokens, of which "
                             "vLLM makes a model of its own")
          .with_hint(fmt::format("--exclude 'model.layers.{}.*' leaves it out",
                                 *layer));
    fused_.push_back(std::move(tensor));
  }

  // [experts, columns, rows] becomes [experts, rows, columns]; [1, n] is [n].
  void arrange(Tensor& tensor) const {
    const auto how = arrangement(*model_, tensor.name);
    if (how == Renaming::kSame) return;
    const size_t wanted = how == Renaming::kTurned ? 3 : 2;
    if (tensor.shape.size() != wanted ||
        (how == Renaming::kRow && tensor.shape[0] != 1))
      throw unfaithful_error(
          {source_.path, tensor.name}, "is {}, expected {}",
          to_string(tensor.shape),
          how == Renaming::kTurned ? "[experts, columns, rows]" : "one row");
    const View view = View::of(tensor);
    (how == Renaming::kTurned ? view.permute({0, 2, 1})
                              : view.reshape({tensor.shape[1]}))
        .into(tensor);
    tensor.tp = {};
  }

  static std::optional<uint64_t> layer_of(std::string_view name) {
    constexpr std::string_view kLayers = "model.layers.";
    if (!name.starts_with(kLayers)) return {};
    name.remove_prefix(kLayers.size());
    const auto layer = text::take_number(name);
    return name.starts_with('.') ? layer : std::nullopt;
  }

  // MODULE.experts.N.PART.weight: joined with those of all N, at the place of
  // the first one's gate or down. False for other tensors.
  bool take_expert(const Tensor& tensor) {
    constexpr std::string_view kWord = ".experts.";
    const size_t at = tensor.name.find(kWord);
    if (at == std::string::npos) return false;
    const std::string before = tensor.name.substr(0, at + kWord.size());
    const std::string rest = tensor.name.substr(before.size());
    const Experts& parts = *model_->experts;
    const std::string_view end =
        config_->blocks && rest.ends_with(kScaleInv) ? kScaleInv : "";
    if (rest == fmt::format("0.{}.weight{}", parts.gate, end))
      join_experts(before, {parts.gate, parts.up}, kUp13, end);
    else if (rest == fmt::format("0.{}.weight{}", parts.down, end))
      join_experts(before, {parts.down}, kDown2, end);
    else if (!is_part(before, rest))
      throw unfaithful_error({source_.path, tensor.name},
                             "it is not known where vLLM has this part of the "
                             "experts");
    return true;
  }

  bool is_part(const std::string& before, std::string rest) const {
    if (config_->blocks && rest.ends_with(kScaleInv))
      rest.resize(rest.size() - kScaleInv.size());
    const size_t dot = rest.find('.');
    for (const std::string_view part :
         {model_->experts->gate, model_->experts->up, model_->experts->down})
      if (dot != rest.npos &&
          rest.substr(dot) == fmt::format(".{}.weight", part))
        return by_name_.contains(before + fmt::format("0.{}.weight", part));
    return false;
  }

  // [experts, gate | up, width], or [experts, width, columns].
  void join_experts(const std::string& before,
                    const std::vector<std::string_view>& parts,
                    std::string_view to, std::string_view end) {
    if (!config_->experts)
      throw unfaithful_error({source_.path, before},
                             "config.json does not say how many experts there "
                             "are");
    std::vector<View> experts;
    Tensor whole;
    for (uint64_t expert = 0; expert < *config_->experts; ++expert) {
      std::vector<View> views;
      for (const std::string_view part : parts) {
        const Tensor& one = find_expert(
            before + fmt::format("{}.{}.weight{}", expert, part, end));
        if (part != parts.back()) check_blocks(one);
        if (expert == 0 && views.empty()) whole = one;
        check_alike(whole, one);
        views.push_back(View::of(one).reshape({1, one.shape[0], one.shape[1]}));
      }
      experts.push_back(View::concat(views, 1));
    }
    const auto more = fmt::format("{}{}.{}.weight{}", before, *config_->experts,
                                  parts[0], end);
    if (by_name_.contains(more))
      throw unfaithful_error({source_.path, more},
                             "an expert more than the {} of config.json",
                             *config_->experts);
    whole.name = before.substr(0, before.size() - kOldExperts.size()) +
                 std::string(kExperts) + std::string(to) + std::string(end);
    whole.tp = {};
    View::concat(experts, 0).into(whole);
    keep(std::move(whole));
  }

  const Tensor& find_expert(const std::string& wanted) const {
    const auto found = by_name_.find(wanted);
    if (found == by_name_.end())
      throw unfaithful_error({source_.path, wanted},
                             "is not there, and vLLM keeps all experts of a "
                             "layer together")
          .with_hint("keep or leave out all of them");
    if (found->second->shape.size() != 2)
      throw unfaithful_error({source_.path, wanted}, "is not a matrix");
    return *found->second;
  }

  // The fused tensor whose part `word` is `tensor`; nothing if there is none.
  std::optional<Tensor> joined(const Tensor& tensor, const Fusion& fusion,
                               std::string_view word) {
    const std::string middle = "." + std::string(word) + ".";
    const size_t at = tensor.name.rfind(middle);
    if (at == std::string::npos) return std::nullopt;
    const std::string before = tensor.name.substr(0, at + 1);
    const std::string after =
        tensor.name.substr(at + middle.size() - 1);  // ".weight"
    // DeepSeek's small models have no low rank for queries.
    if (model_->latent && word == "kv_a_proj_with_mqa" &&
        !by_name_.contains(before + "q_a_proj" + after))
      return std::nullopt;
    std::vector<View> views;
    for (const std::string_view part : fusion.from) {
      const auto found =
          by_name_.find(fmt::format("{}{}{}", before, part, after));
      if (found == by_name_.end())
        throw unfaithful_error({source_.path, tensor.name},
                               "{}{}{} is not there, and vLLM joins them in {}",
                               before, part, after, fusion.to)
            .with_hint("keep or leave out all of them");
      check_alike(tensor, *found->second);
      if (part != fusion.from.back()) check_blocks(*found->second);
      if (part == word || word == fusion.from[0])
        views.push_back(arranged(*found->second, part));
    }
    Tensor whole = tensor;
    whole.name = before + std::string(fusion.to) + after;
    whole.tp = {};
    if (word == fusion.from[0]) View::concat(views, 0).into(whole);
    return whole;
  }

  // Each head's rows 0, 2, 4 … and then 1, 3, 5 …, if the model has pairs.
  View arranged(const Tensor& tensor, std::string_view part) const {
    const View view = View::of(tensor);
    if (!model_->paired || (part != "q_proj" && part != "k_proj")) return view;
    return turn_heads(view, *config_, tensor.name, part == "k_proj", true);
  }

  // A tensor that another one is appended to must end with a whole fp8 block.
  void check_blocks(const Tensor& tensor) const {
    if (!config_->blocks || tensor.shape.size() != 2 ||
        tensor.dtype != DType::f8_e4m3 ||
        tensor.shape[0] % (*config_->blocks)[0] == 0)
      return;
    throw unfaithful_error({source_.path, tensor.name},
                           "its {} rows end inside a block of {}, and vLLM "
                           "joins it with others",
                           tensor.shape[0], (*config_->blocks)[0])
        .with_hint("--dtype bf16 makes numbers of the codes on the way");
  }

  void check_alike(const Tensor& tensor, const Tensor& other) const {
    const bool widths = tensor.shape.size() == other.shape.size() &&
                        !tensor.shape.empty() &&
                        std::equal(tensor.shape.begin() + 1, tensor.shape.end(),
                                   other.shape.begin() + 1);
    if (widths && tensor.dtype == other.dtype) return;
    throw unfaithful_error({source_.path, tensor.name},
                           "is {} {}, {} is {} {}: they can't be joined",
                           name(tensor.dtype), to_string(tensor.shape),
                           other.name, name(other.dtype),
                           to_string(other.shape));
  }

  void pad(Tensor& tensor) {
    if (tensor.shape.empty()) return;
    const uint64_t over = tensor.shape[0] % kVocabMultiple;
    if (over == 0) return;
    Shape zeros = tensor.shape;
    zeros[0] = kVocabMultiple - over;
    const View views[] = {View::of(tensor),
                          View::filled(source_, tensor.dtype, zeros, 0.0)};
    View::concat(views, 0).into(tensor);
    source_.assumptions.push_back(
        fmt::format("{}: {} rows of zeros make {}, a multiple of {}",
                    tensor.name, zeros[0], tensor.shape[0], kVocabMultiple));
  }

  void add_scales(std::string_view output) {
    // Beside the module that `output` is part of.
    std::string prefix = vllm_name(*model_, std::string(output));
    prefix.resize(prefix.rfind('.', prefix.rfind('.') - 1) + 1);
    if (!one_) {
      one_ = View::filled(source_, DType::f32, Shape{}, 1.0);
      source_.assumptions.push_back(
          "attn._q_scale and the like are ones, as vLLM has them since 2025; "
          "for an older one write it again with --exclude '*.attn._*'");
    }
    for (const std::string_view scale :
         {"_k_scale", "_v_scale", "_q_scale", "_prob_scale"}) {
      Tensor& tensor = fused_.emplace_back();
      tensor.name = prefix + (model_->latent ? "mla_attn." : "attn.") +
                    std::string(scale);
      tensor.kind = Kind::other;
      one_->into(tensor);
    }
    if (!config_->blocks || model_->latent) return;
    // What a checkpoint may say about a quantized cache, but this one doesn't.
    if (!unsaid_) unsaid_ = View::filled(source_, DType::f32, Shape{}, -1.0);
    for (const std::string_view scale : kCacheScales) {
      Tensor& tensor = fused_.emplace_back();
      tensor.name = prefix + std::string(scale);
      tensor.kind = Kind::other;
      unsaid_->into(tensor);
    }
  }

  Catalog source_;
  std::optional<Config> config_;
  std::optional<Model> model_;
  std::unordered_map<std::string_view, const Tensor*> by_name_;
  std::vector<Tensor> fused_;
  std::optional<View> one_, unsaid_;
};

}  // namespace

Catalog fuse(Catalog source) {
  locate(source);
  return Fuser(std::move(source)).fuse();
}

}  // namespace ckpt::vllm
