// SPDX-License-Identifier: Apache-2.0
#include "api/edit/redundant.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/buffers.h"
#include "ckpt/ckpt.h"
#include "convert/config/values.h"
#include "convert/translate.h"
#include "lib/text/glob.h"

namespace ckpt::library {

std::string settle_tied_head(Catalog& source, bool repeats) {
  const families::Values config = families::values_of(source, "hf");
  if (config.source.empty() || families::repeats_tied_head(source) == repeats)
    return {};
  const auto tie = config.values.find("tie_word_embeddings");
  if (tie == config.values.end() || *tie != true) return {};
  const Tensor* embedding = source.find("model.embed_tokens.weight");
  const auto head =
      std::ranges::find(source.tensors, "lm_head.weight", &Tensor::name);
  if (!embedding || head == source.tensors.end()) return {};
  source.redundant.push_back(
      {*head, {}, *embedding, "config.json: tie_word_embeddings"});
  if (repeats) return {};
  source.tensors.erase(head);
  return "lm_head.weight is model.embed_tokens.weight and left out: "
         "tie_word_embeddings";
}

bool leave_frequencies(Catalog& source, std::string_view loader,
                       const std::vector<std::string>& drop) {
  const auto is_one = [](const Tensor& tensor) {
    return tensor.name.ends_with(".rotary_emb.inv_freq");
  };
  std::vector<text::Glob> globs;
  globs.reserve(drop.size());
  for (const std::string& pattern : drop) globs.emplace_back(pattern);
  bool dropped = false;
  for (const Tensor& tensor : source.tensors) {
    if (!is_one(tensor)) continue;
    const bool wanted = std::ranges::none_of(
        globs,
        [&](const text::Glob& glob) { return glob.matches(tensor.name); });
    dropped = dropped || !wanted;
    if (wanted)
      source.redundant.push_back(
          {tensor, {}, {}, fmt::format("{} computes it", loader)});
  }
  prove_buffers(source, families::theta_of(source));
  std::erase_if(source.tensors, is_one);
  return dropped;
}

}  // namespace ckpt::library
