// SPDX-License-Identifier: Apache-2.0
#include "formats/modelopt/review.h"

#include <algorithm>
#include <tuple>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/modelopt/modelopt.h"
#include "formats/modelopt/options.h"
#include "lib/text/format.h"

namespace ckpt::modelopt {
namespace {

using Severity = Problem::Severity;

// A source's file names may state any number of ranks.
constexpr uint32_t kMostRanks = 10'000;

bool wants_blocks(const Catalog& source, const Layout& layout) {
  const std::string form = form_of(layout);
  if (!form.empty()) return form == kBlocks;
  const bool was =
      source.format == kFormat &&
      (source.version == kBlocks || source.version == kPickledBlocks);
  return was && layout.topology.pp == 1 && layout.option("blocks").empty();
}

void refuse_optimizer(const Catalog& source) {
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim)
      throw unfaithful_error({{}, tensor.name},
                             "modelopt holds weights, no optimizer state")
          .with_hint("leave it out with --model-only");
}

void refuse_dialect(const Catalog& source) {
  if (source.dialect == "hf" || source.dialect.empty()) return;
  throw unfaithful_error(
      {source.path, {}},
      "modelopt has Hugging Face's names, the source has those of {}",
      source.dialect)
      .with_hint("convert it to Hugging Face's names first");
}

// Rank shards are in the order of the module tree; block files keep it only
// within a group, and other formats' files are mostly sorted by name.
void sort_like_model(Catalog& source, const Naming& naming) {
  const bool own =
      source.format == kFormat &&
      (source.version == kShards || source.version == kPickledShards);
  std::vector<std::pair<std::tuple<int, uint32_t, size_t, size_t>, size_t>>
      order;
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    const Place place = naming.place(source.tensors[i].name);
    const bool block = place.part == Part::kBlock;
    const size_t rank = block && !own ? naming.rank(place.rest) : 0;
    order.push_back({{static_cast<int>(place.part), place.block, rank, i}, i});
  }
  std::ranges::sort(order);
  std::vector<Tensor> sorted;
  sorted.reserve(order.size());
  for (const auto& item : order)
    sorted.push_back(std::move(source.tensors[item.second]));
  source.tensors = std::move(sorted);
}

Tensor* find_part(Catalog& source, const Naming& naming, Part part) {
  const auto found =
      std::ranges::find_if(source.tensors, [&](const Tensor& tensor) {
        return naming.place(tensor.name).part == part;
      });
  return found == source.tensors.end() ? nullptr : &*found;
}

// Rank shards hold the head of a tied model by its own name; Hugging Face and
// block files leave it out. If it is left out, its elements must be the
// embedding's: it is compared as a replica.
void settle_head(Catalog& source, const Decision& decision) {
  if (!decision.tied) return;
  Tensor* embedding = find_part(source, *decision.naming, Part::kEmbedding);
  Tensor* head = find_part(source, *decision.naming, Part::kHead);
  if (!embedding) return;
  if (!head && !decision.blocks) {
    Tensor copy = *embedding;
    copy.name = decision.naming->head.front();
    source.assumptions.push_back(copy.name + " is " + embedding->name +
                                 ": config.json says that they are tied");
    source.tensors.push_back(std::move(copy));
  } else if (head && decision.blocks) {
    if (head->dtype != embedding->dtype || head->shape != embedding->shape)
      throw unfaithful_error(
          {{}, head->name},
          "is {} {}, {} is {} {}; config.json says that they "
          "are one tensor",
          name(head->dtype), to_string(head->shape), embedding->name,
          name(embedding->dtype), to_string(embedding->shape));
    embedding->pieces.insert(embedding->pieces.end(), head->pieces.begin(),
                             head->pieces.end());
    source.assumptions.push_back(head->name + " is left out: it is " +
                                 embedding->name + " (tie_word_embeddings)");
    source.tensors.erase(source.tensors.begin() +
                         (head - source.tensors.data()));
  }
}

// `asked`: for some of the blocks. Else a tensor in no file would be lost.
void drop_unowned(Catalog& source, const Decision& decision, bool asked) {
  const auto is_lost = [&](const Tensor& tensor) {
    return decision.keepers(tensor).empty();
  };
  if (!asked)
    for (const Tensor& tensor : source.tensors)
      if (is_lost(tensor))
        throw unfaithful_error({source.path, tensor.name},
                               "belongs to no rank's blocks")
            .with_hint("leave it out with --exclude");
  const size_t dropped = std::erase_if(source.tensors, is_lost);
  if (dropped)
    source.assumptions.push_back(fmt::format(
        "{} tensors of blocks that no rank owns are left out", dropped));
}

void warn_of_blocks(Catalog& source, const Decision& decision) {
  const uint64_t ranks = decision.owners.ranks();
  if (decision.blocks || ranks == 1 || decision.owners.of_block(0)) return;
  source.problems.push_back(
      warning("unknown_blocks", {},
              "no rule says which tensors are a block's: of {} files the first "
              "has the whole model",
              ranks));
}

void note_packed(Catalog& source) {
  const auto packed =
      std::ranges::count_if(source.tensors, [](const Tensor& tensor) {
        return tensor.dtype == DType::u8 &&
               (tensor.name.ends_with("_proj_blocks") ||
                tensor.name.ends_with("_proj_scales"));
      });
  if (packed)
    source.problems.push_back(
        warning("mxfp4", {source.path, {}},
                "{} tensors of MXFP4 experts are carried as they are; "
                "ModelOpt's own converter expands them to bf16, ckpt "
                "does no arithmetic on weights",
                packed));
}

}  // namespace

Decision decide(const Catalog& source, const Layout& layout) {
  if (layout.topology.pp > kMostRanks)
    throw usage_error({}, "{} ranks, modelopt is written for at most {}",
                      layout.topology.pp, kMostRanks)
        .with_hint("give the number of ranks with --pp");
  Decision decision;
  decision.naming = &naming_of(source);
  decision.config = config_of(source);
  decision.tied = decision.config && decision.config->tied;
  decision.blocks = wants_blocks(source, layout);
  const uint64_t count = block_count(source, *decision.naming, decision.config);
  const std::string blocks = layout.option("blocks");
  if (blocks.empty()) {
    decision.owners =
        Owners::even(count, decision.blocks ? 1 : layout.topology.pp);
    return decision;
  }
  decision.owners = Owners::given(blocks, count);
  if (decision.blocks && decision.owners.ranks() > 1)
    throw usage_error({}, "--blocks {}: block files have no ranks", blocks)
        .with_hint("give one list of blocks");
  return decision;
}

Catalog review(Catalog source, const Layout& layout) {
  refuse_optimizer(source);
  refuse_dialect(source);
  if (layout.max_shard_size)
    throw usage_error({}, "--max-shard-size: modelopt's files follow blocks")
        .with_hint("more ranks make smaller files: --pp N");
  const Decision decision = decide(source, layout);
  settle_head(source, decision);
  drop_unowned(source, decision, !layout.option("blocks").empty());
  if (source.tensors.empty())
    throw unfaithful_error({source.path, {}},
                           "no tensor belongs to --blocks {}",
                           layout.option("blocks"));
  sort_like_model(source, *decision.naming);
  warn_of_blocks(source, decision);
  note_packed(source);
  return source;
}

}  // namespace ckpt::modelopt
