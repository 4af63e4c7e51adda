// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/owned.h"

#include <algorithm>

#include "ckpt/catalog.h"

namespace ckpt::ranks {
namespace {

using reshard::Item;
using reshard::Job;
using reshard::kNone;
using reshard::Lane;
using reshard::Move;
using reshard::Plan;

uint32_t owner_of(const Owners& owners, uint32_t file) {
  return file < owners.size() ? owners[file] : kNone;
}

// Ranks that a job reads from, each once; what belongs to no rank goes with the
// first.
std::vector<uint32_t> owners_of(const Plan& plan, const Job& job,
                                const Owners& owners) {
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < job.sources; ++i) {
    const uint32_t owner =
        owner_of(owners, plan.lanes[job.first_source + i].file);
    if (owner != kNone && !std::ranges::count(found, owner))
      found.push_back(owner);
  }
  if (found.empty()) found.push_back(kNone);
  return found;
}

class OwnerCutter {
 public:
  OwnerCutter(const Plan& plan, const Owners& owners)
      : plan_(plan), owners_(owners) {}

  void add(const Job& job) {
    const std::vector<uint32_t> ranks = owners_of(plan_, job, owners_);
    if (ranks.size() == 1) return copy(job);
    for (const uint32_t rank : ranks) add_part(job, rank, rank == ranks[0]);
  }

  void finish(Plan& plan) {
    plan.jobs = std::move(jobs_);
    plan.lanes = std::move(lanes_);
    plan.moves = std::move(moves_);
  }

 private:
  template <class T>
  static uint32_t size(const std::vector<T>& list) {
    return static_cast<uint32_t>(list.size());
  }

  void copy(const Job& job) {
    Job whole = job;
    whole.first_source = size(lanes_);
    add_lanes(job.first_source, job.sources);
    whole.first_target = size(lanes_);
    add_lanes(job.first_target, job.targets);
    whole.first_move = size(moves_);
    const auto first = plan_.moves.begin() + job.first_move;
    moves_.insert(moves_.end(), first, first + job.moves);
    jobs_.push_back(whole);
  }
  void add_lanes(uint32_t first, uint32_t count) {
    const auto begin = plan_.lanes.begin() + first;
    lanes_.insert(lanes_.end(), begin, begin + count);
  }

  // Adds the moves from one rank. Each writes its own columns: the row's other
  // columns are not there to be written with them.
  void add_part(const Job& job, uint32_t rank, bool first) {
    Job part = job;
    part.first_source = size(lanes_);
    std::vector<uint32_t> number(job.sources, kNone);
    part.sources = 0;
    for (uint32_t i = 0; i < job.sources; ++i) {
      const Lane& lane = plan_.lanes[job.first_source + i];
      const uint32_t owner = owner_of(owners_, lane.file);
      if (owner != rank && !(first && owner == kNone)) continue;
      number[i] = part.sources++;
      lanes_.push_back(lane);
    }
    part.first_target = size(lanes_);
    part.targets = 0;
    part.first_move = size(moves_);
    part.moves = 0;
    for (uint32_t m = 0; m < job.moves; ++m) {
      Move move = plan_.moves[job.first_move + m];
      if (number[move.source] == kNone) continue;
      move.source = number[move.source];
      if (move.target != kNone) {
        Lane lane = plan_.lanes[job.first_target + move.target];
        lane.offset += move.target_column;
        lane.width = written(job, move.bytes);
        move.target_column = 0;
        move.target = part.targets++;
        lanes_.push_back(lane);
      }
      moves_.push_back(move);
      ++part.moves;
    }
    jobs_.push_back(part);
  }

  uint64_t written(const Job& job, uint64_t bytes) const {
    const reshard::PlannedTensor& tensor = plan_.tensors[job.tensor];
    if (!tensor.casts()) return bytes;
    return bytes / element_size(tensor.source_dtype) *
           element_size(tensor.target_dtype);
  }

  const Plan& plan_;
  const Owners& owners_;
  std::vector<Job> jobs_;
  std::vector<Lane> lanes_;
  std::vector<Move> moves_;
};

}  // namespace

void cut_by_owner(Plan& plan, const Owners& owners) {
  OwnerCutter cutter(plan, owners);
  for (const Job& job : plan.jobs) cutter.add(job);
  cutter.finish(plan);
}

std::vector<std::vector<Item>> split_by_owner(const Plan& plan,
                                              const Owners& owners,
                                              uint32_t ranks) {
  std::vector<std::vector<Item>> parts(ranks);
  for (const Item& item : reshard::cut_items(plan, reshard::kItemBytes)) {
    const uint32_t owner =
        item.gather ? owner_of(owners, plan.gathers[item.index].source_file)
                    : owners_of(plan, plan.jobs[item.index], owners).front();
    parts[owner == kNone ? 0 : owner].push_back(item);
  }
  return parts;
}

}  // namespace ckpt::ranks
