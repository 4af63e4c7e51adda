#include "formats/vllm/fuse.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "formats/families/view.h"
#include "formats/vllm/config.h"
#include "formats/vllm/layout.h"
#include "formats/vllm/models.h"

namespace ckpt::vllm {
namespace {

using families::View;

class Fuser {
 public:
  explicit Fuser(Catalog source) : source_(std::move(source)) {}

  Catalog fuse() {
    config_ = config_of(source_);
    model_ = &model_of(source_, config_);
    settle_head();
    for (const Tensor& tensor : source_.tensors)
      by_name_.emplace(tensor.name, &tensor);
    // Views add files to a catalog; these go to the result in the end.
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

  // One tensor under two names is saved once. A head that the source has
  // besides must be the same: as a replica it is compared.
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
      embedding->pieces.insert(embedding->pieces.end(), head->pieces.begin(),
                               head->pieces.end());
    }
    if (model_->head) embedding->name = kHead;
    source_.assumptions.push_back(
        fmt::format("the embeddings are tied (tie_word_embeddings): one "
                    "tensor, {}",
                    embedding->name));
    if (head)
      source_.tensors.erase(source_.tensors.begin() +
                            (head - source_.tensors.data()));
    // Where a model's last tensor is.
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
    for (const Fusion& fusion : fusions())
      for (size_t i = 0; i < fusion.from.size(); ++i)
        if (const auto whole = joined(tensor, fusion, fusion.from[i])) {
          if (i == 0) fused_.push_back(*whole);
          return;
        }
    fused_.push_back(tensor);
    if (tensor.name == kEmbedding || tensor.name == kHead) pad(fused_.back());
    if (tensor.name.ends_with(".self_attn.o_proj.weight"))
      add_scales(tensor.name);
  }

  // The fusion that a tensor is the part `word` of; nothing if it is none.
  std::optional<Tensor> joined(const Tensor& tensor, const Fusion& fusion,
                               std::string_view word) {
    const std::string middle = "." + std::string(word) + ".";
    const size_t at = tensor.name.rfind(middle);
    if (at == std::string::npos) return std::nullopt;
    const std::string before = tensor.name.substr(0, at + 1);
    const std::string after =
        tensor.name.substr(at + middle.size() - 1);  // ".weight"
    std::vector<View> views;
    for (const std::string_view part : fusion.from) {
      const auto found = by_name_.find(before + std::string(part) + after);
      if (found == by_name_.end())
        throw unfaithful_error({source_.path, tensor.name},
                               "{}{}{} is not there, and vLLM joins them in {}",
                               before, part, after, fusion.to)
            .with_hint("keep or leave out all of them");
      check_alike(tensor, *found->second);
      if (part == word || word == fusion.from[0])
        views.push_back(View::of(*found->second));
    }
    Tensor whole = tensor;
    whole.name = before + std::string(fusion.to) + after;
    whole.tp = {};
    if (word == fusion.from[0]) View::concat(views, 0).into(whole);
    return whole;
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
    const std::string prefix(output.substr(0, output.rfind("o_proj.weight")));
    if (!one_) {
      one_ = View::filled(source_, DType::f32, Shape{}, 1.0);
      source_.assumptions.push_back(
          "attn._q_scale and the like are ones, as vLLM has them since 2025; "
          "for an older one write it again with --exclude '*.attn._*'");
    }
    for (const std::string_view scale :
         {"_k_scale", "_v_scale", "_q_scale", "_prob_scale"}) {
      Tensor& tensor = fused_.emplace_back();
      tensor.name = prefix + "attn." + std::string(scale);
      tensor.kind = Kind::other;
      one_->into(tensor);
    }
  }

  Catalog source_;
  std::optional<Config> config_;
  const Model* model_ = nullptr;
  std::unordered_map<std::string_view, const Tensor*> by_name_;
  std::vector<Tensor> fused_;
  std::optional<View> one_;
};

}  // namespace

Catalog fuse(Catalog source) {
  locate(source);
  return Fuser(std::move(source)).fuse();
}

}  // namespace ckpt::vllm
