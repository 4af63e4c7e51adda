// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/v1/cut.h"

#include <algorithm>
#include <map>

#include "ckpt/error.h"
#include "formats/dcp/boxes.h"
#include "formats/olmo_core/shards.h"
#include "formats/olmo_core/v1/rows.h"
#include "formats/olmo_core/v1/v1.h"
#include "lib/cuts.h"
#include "lib/io/file.h"
#include "models/rules.h"

namespace ckpt::olmo_core::v1 {
namespace {

// OLMo-core reads only boxes of one and two dimensions.
constexpr size_t kMostBoxDims = 2;

uint64_t count_of(const Tensor& tensor) {
  return element_count(tensor.shape).value_or(0);
}

Cut plain(uint64_t count, uint32_t rank = 0) {
  Cut cut;
  cut.shards.push_back(
      {.rank = rank, .ranges = {{0, count}}, .box = {}, .elements = count});
  return cut;
}

// Adds a range to a shard, and joins neighbours.
void add_range(Shard& shard, const FlatRange& range) {
  shard.elements += range.end - range.begin;
  if (!shard.ranges.empty() && shard.ranges.back().end == range.begin)
    shard.ranges.back().end = range.end;
  else
    shard.ranges.push_back(range);
}

// Adds the ranks from 0 to `ranks` - 1 that have nothing.
void add_empty(Cut& cut, uint32_t ranks) {
  std::vector<Shard> all;
  auto next = cut.shards.begin();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (next != cut.shards.end() && next->rank == rank)
      all.push_back(std::move(*next++));
    else
      all.push_back(
          {.rank = rank, .ranges = {{0, 0}}, .box = {}, .elements = 0});
  }
  cut.shards = std::move(all);
}

// Adds the ranks past the end of the split dimension.
void add_empty_boxes(Cut& cut, const Tensor& tensor, uint32_t ranks) {
  Box empty = Box::whole(tensor.shape);
  empty.offset[tensor.tp.dim] = tensor.shape[tensor.tp.dim];
  empty.shape[tensor.tp.dim] = 0;
  for (uint32_t rank = cut.shards.back().rank + 1; rank < ranks; ++rank)
    cut.shards.push_back(
        {.rank = rank, .ranges = {}, .box = empty, .elements = 0});
}

// True for a DTensor that every rank has whole: OLMo-core stores all copies.
bool is_copied(const Tensor& tensor) {
  return tensor.pieces.size() > 1 &&
         std::ranges::all_of(tensor.pieces, [&](const Piece& piece) {
           return !piece.flat && piece.box == Box::whole(tensor.shape);
         });
}

Cut copies(const Tensor& tensor, uint32_t ranks) {
  Cut cut{.sharded = true, .shards = {}};
  for (uint32_t rank = 0; rank < ranks; ++rank)
    cut.shards.push_back({.rank = rank,
                          .ranges = {},
                          .box = Box::whole(tensor.shape),
                          .elements = count_of(tensor)});
  return cut;
}

}  // namespace

TensorCutter::TensorCutter(const Catalog& source, const Topology& topology)
    : source_(source), topology_(topology), ranks_(ranks_of(topology)) {
  keeps_ = source.format == kFormat && topology == source.topology;
}

Cut TensorCutter::cut(const Tensor& tensor) const {
  const uint64_t count = count_of(tensor);
  if (count == 0) return plain(0);
  if (keeps_) return keep(tensor);
  if (tensor.shape.empty()) return plain(count);
  if (topology_.tp == 1)
    return ranks_ == 1 || tensor.dp_replicated ? plain(count) : flat(count);
  TpRule rule = tensor.tp;
  if (rule.state == TpRule::State::kUnknown && tensor.kind == Kind::other)
    rule = TpRule::replicated();
  if (rule.state == TpRule::State::kUnknown)
    throw families::no_rule_error(source_.path, tensor, source_.family,
                                  topology_.tp);
  if (source_.format == kFormat && is_copied(tensor) && topology_.dp == 1)
    return copies(tensor, ranks_);
  if (rule.state == TpRule::State::kReplicated &&
      (topology_.dp == 1 || tensor.dp_replicated))
    return plain(count);
  return boxes(tensor, rule);
}

// The pieces of one file are one shard.
Cut TensorCutter::keep(const Tensor& tensor) const {
  std::map<uint32_t, std::vector<const Piece*>> by_rank;
  bool any_flat = false;
  for (const Piece& piece : tensor.pieces) {
    const std::string& path = source_.files.at(piece.extent.file).path;
    by_rank[rank_of_file(io::base_name(path)).value_or(0)].push_back(&piece);
    any_flat = any_flat || piece.flat.has_value();
  }
  const bool boxed = !any_flat && tensor.pieces.size() > 1;
  if (!any_flat && !boxed)
    return plain(count_of(tensor), by_rank.begin()->first);
  Cut cut{.sharded = true, .shards = {}};
  for (const auto& [rank, pieces] : by_rank) {
    Shard& shard = cut.shards.emplace_back();
    shard.rank = rank;
    if (boxed && pieces.size() == 1) {
      shard.box = pieces[0]->box;
      shard.elements = volume(pieces[0]->box);
      continue;
    }
    for (const Piece* piece : pieces) {
      if (piece->flat)
        add_range(shard, *piece->flat);
      else
        each_row(piece->box, tensor.shape,
                 [&](const FlatRange& range) { add_range(shard, range); });
    }
  }
  if (any_flat) add_empty(cut, std::max(topology_.dp, 1u));
  if (boxed && tensor.tp.state == TpRule::State::kSplit)
    add_empty_boxes(cut, tensor, ranks_);
  return cut;
}

Cut TensorCutter::flat(uint64_t count) const {
  Cut cut{.sharded = true, .shards = {}};
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    const auto [begin, end] = cuts::chunk(count, ranks_, rank);
    const FlatRange range = begin < end ? FlatRange{begin, end} : FlatRange{};
    cut.shards.push_back({.rank = rank,
                          .ranges = {range},
                          .box = {},
                          .elements = range.end - range.begin});
  }
  return cut;
}

Cut TensorCutter::boxes(const Tensor& tensor, const TpRule& rule) const {
  const dcp::Mesh mesh{topology_.dp, topology_.tp};
  const dcp::Cutter cutter(tensor, rule, !tensor.dp_replicated, mesh);
  Cut cut{.sharded = true, .shards = {}};
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    // The lowest rank with a box has its only copy.
    if (cutter.replicas(rank).first != rank) continue;
    std::vector<Box> mine;
    cutter.boxes(rank, [&](const Box& box) { mine.push_back(box); });
    Shard& shard = cut.shards.emplace_back();
    shard.rank = rank;
    if (mine.size() == 1 && tensor.shape.size() <= kMostBoxDims) {
      shard.elements = volume(mine[0]);
      shard.box = std::move(mine[0]);
      continue;
    }
    for (const Box& box : mine)
      if (volume(box) != 0)
        each_row(box, tensor.shape,
                 [&](const FlatRange& range) { add_range(shard, range); });
    if (shard.ranges.empty()) shard.ranges.push_back({0, 0});
  }
  return cut;
}

}  // namespace ckpt::olmo_core::v1
