// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/by_target.h"

#include <algorithm>
#include <map>

namespace ckpt::ranks {
namespace {

using reshard::Item;
using reshard::Job;
using reshard::kNone;
using reshard::Lane;
using reshard::Move;
using reshard::Plan;

class Cutter {
 public:
  Cutter(const Plan& plan, const Target& target, uint32_t ranks)
      : whole_(plan), owners_(owners_of(target, ranks)) {
    result_.plan = plan;
    result_.parts.resize(ranks);
  }

  void deal(const Item& item) {
    if (item.gather) {
      const uint32_t file = whole_.gathers[item.index].target_file;
      result_.parts[file == kNone ? anyone(item) : owners_[file]].push_back(
          item);
      return;
    }
    if (item.index != last_) begin_job(item.index);
    if (ranks_.size() <= 1) {
      result_.parts[ranks_.empty() ? anyone(item) : ranks_[0]].push_back(item);
      return;
    }
    for (const uint32_t rank : ranks_) {
      Item part = item;
      part.index = part_for(item.index, rank);
      part.number = kNone;
      result_.parts[rank].push_back(part);
    }
  }

  ByTarget take() { return std::move(result_); }

 private:
  // What is only read and compared belongs to no file.
  uint32_t anyone(const Item& item) const {
    return static_cast<uint32_t>(item.index % result_.parts.size());
  }

  uint32_t owner(const Job& job, const Move& move) const {
    if (move.target == kNone) return ranks_[0];
    return owners_[whole_.lanes[job.first_target + move.target].file];
  }

  void begin_job(uint32_t index) {
    last_ = index;
    ranks_.clear();
    made_.clear();
    const Job& job = whole_.jobs[index];
    for (uint32_t t = 0; t < job.targets; ++t) {
      const uint32_t rank = owners_[whole_.lanes[job.first_target + t].file];
      if (!std::ranges::count(ranks_, rank)) ranks_.push_back(rank);
    }
  }

  // The job with only one rank's moves, and with what those need of its lanes.
  uint32_t part_for(uint32_t index, uint32_t rank) {
    const auto [found, added] = made_.try_emplace(
        rank, static_cast<uint32_t>(result_.plan.jobs.size()));
    if (!added) return found->second;
    const Job& job = whole_.jobs[index];
    std::vector<Move> moves;
    for (uint32_t m = 0; m < job.moves; ++m) {
      const Move& move = whole_.moves[job.first_move + m];
      if (owner(job, move) == rank) moves.push_back(move);
    }
    Job part = job;
    add_sources(job, part, moves);
    add_targets(job, part, moves);
    part.first_move = static_cast<uint32_t>(result_.plan.moves.size());
    part.moves = static_cast<uint32_t>(moves.size());
    result_.plan.moves.insert(result_.plan.moves.end(), moves.begin(),
                              moves.end());
    result_.plan.jobs.push_back(part);
    return found->second;
  }

  // Adds the lanes that are read, as wide as the moves are. A job of one row
  // keeps its columns: items count in them, and only what moves is read.
  void add_sources(const Job& job, Job& part, std::vector<Move>& moves) {
    part.first_source = static_cast<uint32_t>(result_.plan.lanes.size());
    part.sources = 0;
    for (uint32_t s = 0; s < job.sources; ++s) {
      uint64_t low = UINT64_MAX, high = 0;
      for (const Move& move : moves) {
        if (move.source != s) continue;
        low = std::min(low, move.source_column);
        high = std::max(high, move.source_column + move.bytes);
      }
      if (low >= high) continue;
      Lane lane = whole_.lanes[job.first_source + s];
      if (job.rows == 1) low = 0, high = lane.width;
      lane.offset += low;
      lane.width = high - low;
      for (Move& move : moves) {
        if (move.source != s) continue;
        move.source = part.sources;
        move.source_column -= low;
      }
      result_.plan.lanes.push_back(lane);
      ++part.sources;
    }
  }

  void add_targets(const Job& job, Job& part, std::vector<Move>& moves) {
    part.first_target = static_cast<uint32_t>(result_.plan.lanes.size());
    part.targets = 0;
    for (uint32_t t = 0; t < job.targets; ++t) {
      const auto is_its = [&](const Move& move) { return move.target == t; };
      if (!std::ranges::any_of(moves, is_its)) continue;
      for (Move& move : moves)
        if (is_its(move)) move.target = part.targets;
      result_.plan.lanes.push_back(whole_.lanes[job.first_target + t]);
      ++part.targets;
    }
  }

  const Plan& whole_;
  const std::vector<uint32_t> owners_;
  ByTarget result_;
  uint32_t last_ = kNone;              // the job of the last item
  std::vector<uint32_t> ranks_;        // that it writes for
  std::map<uint32_t, uint32_t> made_;  // its part for each of them
};

}  // namespace

std::vector<uint32_t> owners_of(const Target& target, uint32_t ranks) {
  uint64_t all = 0;
  for (const TargetFile& file : target.files) all += file.size;
  std::vector<uint32_t> owners;
  uint64_t given = 0;
  for (const TargetFile& file : target.files) {
    const auto middle = static_cast<unsigned __int128>(given + file.size / 2);
    owners.push_back(static_cast<uint32_t>(
        all ? std::min<unsigned __int128>(middle * ranks / all, ranks - 1)
            : 0));
    given += file.size;
  }
  return owners;
}

ByTarget split_by_target(const Plan& plan, const Target& target,
                         const std::vector<Item>& items, uint32_t ranks) {
  Cutter cutter(plan, target, ranks);
  for (const Item& item : items) cutter.deal(item);
  return cutter.take();
}

}  // namespace ckpt::ranks
