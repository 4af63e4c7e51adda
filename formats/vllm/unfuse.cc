// SPDX-License-Identifier: Apache-2.0
#include "formats/vllm/unfuse.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/vllm/config.h"
#include "formats/vllm/layout.h"
#include "formats/vllm/models.h"
#include "models/view.h"

namespace ckpt::vllm {
namespace {

using families::View;

// "a.b.qkv_proj.weight": what comes before and after the module's name.
struct Place {
  std::string before, after;
};

std::optional<Place> place_of(const std::string& name,
                              std::string_view module) {
  const std::string middle = "." + std::string(module) + ".";
  const size_t at = name.rfind(middle);
  if (at == name.npos) return std::nullopt;
  return Place{name.substr(0, at + 1), name.substr(at + middle.size() - 1)};
}

// attn._k_scale and the like: "._" begins their last word.
bool is_scale(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot != name.npos && name.compare(dot, 2, "._") == 0 &&
         name.ends_with("_scale");
}

bool is_cache_scale(const std::string& name) {
  return std::ranges::any_of(kCacheScales, [&](std::string_view scale) {
    return name.ends_with("." + std::string(scale));
  });
}

class Unfuser {
 public:
  explicit Unfuser(Catalog source) : source_(std::move(source)) {}

  Catalog unfuse() {
    config_ = config_of(source_);
    model_ = model_of(source_, config_);
    tied_ = config_->tied.value_or(model_->tied) && model_->head;
    for (const Tensor& tensor : source_.tensors) take(tensor);
    source_.tensors = std::move(parts_);
    source_.dialect = "hf";
    source_.topology = {};
    source_.assumptions.push_back(
        "vLLM's fused tensors are taken apart by config.json");
    return std::move(source_);
  }

 private:
  void take(const Tensor& tensor) {
    if (is_scale(tensor.name)) {
      source_.redundant.push_back(
          {tensor, 1.0, {}, "vLLM makes it itself: 1 in unquantized models"});
      return;
    }
    if (config_->blocks && is_cache_scale(tensor.name)) {
      source_.redundant.push_back(
          {tensor, -1.0, {}, "vLLM has it so where a checkpoint says nothing"});
      return;
    }
    if (model_->experts && take_experts(tensor)) return;
    for (const Fusion& fusion : model_->fusions)
      if (const auto place = place_of(tensor.name, fusion.to)) {
        cut(tensor, fusion, *place);
        return;
      }
    parts_.push_back(tensor);
    Tensor& kept = parts_.back();
    kept.tp = {};
    kept.name = hf_name(*model_, std::move(kept.name));
    const auto how = arrangement(*model_, kept.name);
    if (how == Renaming::kTurned && kept.shape.size() == 3)
      View::of(kept).permute({0, 2, 1}).into(kept);
    if (how == Renaming::kRow && kept.shape.size() == 1)
      View::of(kept).reshape({1, kept.shape[0]}).into(kept);
    if (kept.name == kEmbedding || kept.name == kHead || kept.name == kHeadBias)
      unpad(kept);
    if (kept.name == kHead && tied_) kept.name = kEmbedding;
  }

  // experts.w13_weight, experts.w2_weight, by new and old names.
  bool take_experts(const Tensor& tensor) {
    for (const std::string_view module : {kExperts, kOldExperts})
      for (const std::string_view word : {kUp13, kDown2}) {
        const auto weight =
            config_->blocks ? scaled_weight(tensor.name) : std::nullopt;
        const std::string& name = weight ? *weight : tensor.name;
        const std::string end = "." + std::string(module) + std::string(word);
        if (!name.ends_with(end)) continue;
        const std::string before = name.substr(0, name.size() - end.size() + 1);
        cut_experts(tensor, before + "experts.", word == kUp13,
                    weight ? kScaleInv : "");
        if (word == kUp13) warn_of_order(tensor.name);
        return true;
      }
    return false;
  }

  // vLLM saves what its kernels made of the weights after loading them.
  // FlashInfer's want up above gate, with the same names, shapes and dtypes.
  void warn_of_order(const std::string& name) {
    if (warned_) return;
    warned_ = true;
    source_.problems.push_back(warning(
        "w13_order", {source_.path, name},
        "gate is taken to stand above up; a vLLM that ran its experts by "
        "FlashInfer's kernels saves them the other way round, and nothing in "
        "the files tells: compare one expert's gate_proj with the original "
        "model's"));
  }

  void cut_experts(const Tensor& tensor, const std::string& before, bool up,
                   std::string_view end) {
    const Shape& shape = tensor.shape;
    if (shape.size() != 3 || shape[0] != config_->experts.value_or(0) ||
        (up && shape[1] % 2 != 0))
      throw unfaithful_error({source_.path, tensor.name},
                             "is {}, config.json's experts are {}",
                             to_string(shape), config_->experts.value_or(0));
    const Experts& names = *model_->experts;
    std::vector<std::string_view> parts = {names.down};
    if (up) parts = {names.gate, names.up};
    const uint64_t rows = shape[1] / parts.size();
    const View whole = View::of(tensor);
    for (uint64_t expert = 0; expert < shape[0]; ++expert)
      for (size_t i = 0; i < parts.size(); ++i) {
        Tensor& part = parts_.emplace_back();
        part.name =
            before + fmt::format("{}.{}.weight{}", expert, parts[i], end);
        part.kind = tensor.kind;
        whole.slice(0, expert, 1)
            .slice(1, i * rows, rows)
            .reshape({rows, shape[2]})
            .into(part);
      }
  }

  void cut(const Tensor& tensor, const Fusion& fusion, const Place& place) {
    const std::vector<uint64_t> rows = rows_of(tensor, fusion);
    const View whole = View::of(tensor);
    uint64_t at = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      Tensor& part = parts_.emplace_back();
      part.name = hf_name(
          *model_, place.before + std::string(fusion.from[i]) + place.after);
      part.kind = tensor.kind;
      const View mine = whole.slice(0, at, rows[i]);
      if (model_->paired && fusion.from.size() == 3 && i < 2)
        turn_heads(mine, *config_, part.name, i == 1, false).into(part);
      else
        mine.into(part);
      at += rows[i];
    }
  }

  std::vector<uint64_t> rows_of(const Tensor& tensor,
                                const Fusion& fusion) const {
    const uint64_t all = tensor.shape.empty() ? 0 : tensor.shape[0];
    const uint64_t block = config_->blocks && scaled_weight(tensor.name)
                               ? (*config_->blocks)[0]
                               : 1;
    if (fusion.to == kLatent) {
      const uint64_t rank = config_->q_rank.value_or(0) / block;
      if (rank == 0 || rank >= all) refuse(tensor, all);
      return {rank, all - rank};
    }
    if (fusion.from.size() == 2) {
      if (all == 0 || all % 2 != 0) refuse(tensor, all);
      return {all / 2, all / 2};
    }
    std::optional<uint64_t> queries = config_->query_rows();
    const std::string output = output_of(tensor.name);
    for (const Tensor& other : source_.tensors)
      if (other.name == output && other.shape.size() == 2)
        queries = other.shape[1];
    if (queries) *queries /= block;
    if (!queries || *queries >= all || (all - *queries) % 2 != 0)
      refuse(tensor, all);
    const uint64_t keys = (all - *queries) / 2;
    return {*queries, keys, keys};
  }

  [[noreturn]] void refuse(const Tensor& tensor, uint64_t rows) const {
    throw unfaithful_error({source_.path, tensor.name},
                           "its {} rows are not what config.json's heads and "
                           "widths make",
                           rows)
        .with_hint("is it this model's config.json?");
  }

  // Rows past vocab_size must be zero, or something would be lost.
  void unpad(Tensor& tensor) {
    if (!config_->vocab || tensor.shape.empty() ||
        tensor.shape[0] <= *config_->vocab)
      return;
    const uint64_t used = *config_->vocab, over = tensor.shape[0] - used;
    const View whole = View::of(tensor);
    Tensor padding{.name = tensor.name};
    whole.slice(0, used, over).into(padding);
    source_.redundant.push_back(
        {std::move(padding),
         0.0,
         {},
         fmt::format("vocab_size is {}, rows past it are padding", used)});
    whole.slice(0, 0, used).into(tensor);
    source_.assumptions.push_back(
        fmt::format("{}: {} rows of padding are left out", tensor.name, over));
  }

  Catalog source_;
  std::optional<Config> config_;
  std::optional<Model> model_;
  bool tied_ = false;
  bool warned_ = false;
  std::vector<Tensor> parts_;
};

}  // namespace

Catalog unfuse(Catalog source) {
  locate(source);
  return Unfuser(std::move(source)).unfuse();
}

}  // namespace ckpt::vllm
