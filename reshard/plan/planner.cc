// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/planner.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <numeric>
#include <span>
#include <unordered_map>

#include "ckpt/error.h"
#include "lib/heap.h"
#include "lib/parallel.h"
#include "reshard/plan/cover.h"
#include "reshard/plan/merge.h"
#include "reshard/plan/placed.h"
#include "reshard/plan/plan_size.h"

namespace ckpt::reshard {
namespace {

// A target box without a file: the elements are only read and digested.
Placed read_only(const Box& box) {
  return {.box = box, .strides = Dims(box.shape.size(), 0)};
}

class Planner {
 public:
  Planner(const Catalog& source, bool compare_replicas, bool whole = true)
      : source_(source), compare_replicas_(compare_replicas), whole_(whole) {}

  // The digest slots of all tensors come first, so all tensors are added first.
  uint32_t add_tensor(const Tensor& from, DType target_dtype) {
    plan_.tensors.push_back({from.name, from.dtype, target_dtype, from.shape});
    return plan_.slots++;
  }

  void plan_tensor(uint32_t index, const Tensor& from,
                   std::vector<Placed> targets, const std::string& path) {
    std::vector<Placed> sources = place(from, source_.path);
    split_replicas(index, from, sources);
    const PlannedTensor& planned = plan_.tensors[index];
    const Cells cells{
        .index = index,
        .grid = grid_of(from.dtype, space_of(from)),
        .target_element = element_size(planned.target_dtype),
        .path = path,
        .whole = whole_,
        .refined = !from.grid.empty(),
    };
    if (cells.refined) refine_all(from, targets);
    merge(cells, std::move(sources), std::move(targets), plan_);
    plan_replicas(cells);
  }

  void reserve(const PlanSize& size) {
    plan_.tensors.reserve(size.tensors);
    plan_.jobs.reserve(size.jobs);
    plan_.lanes.reserve(size.lanes);
    plan_.moves.reserve(size.moves);
    plan_.gathers.reserve(size.gathers);
  }

  // The plan with its sums, and jobs in no particular order.
  Plan counted() {
    count_bytes(plan_);
    return std::move(plan_);
  }
  Plan finish() {
    count_bytes(plan_);
    order_jobs(plan_);
    return std::move(plan_);
  }

 private:
  // Targets are counted in the tensor's shape, its pieces in a finer one.
  static void refine_all(const Tensor& from, std::vector<Placed>& targets) {
    std::vector<Placed> finer;
    for (const Placed& target : targets)
      for (Placed& box : refine(target, from.shape, from.grid))
        finer.push_back(std::move(box));
    targets = std::move(finer);
  }

  // Moves replicas from `sources` to replicas_, with slots to compare them.
  void split_replicas(uint32_t index, const Tensor& from,
                      std::vector<Placed>& sources) {
    replicas_.clear();
    const auto is_replica = [](const Placed& p) { return !p.primary; };
    if (!compare_replicas_ || from.pieces.size() < 2 ||
        std::ranges::none_of(sources, is_replica)) {
      std::erase_if(sources, is_replica);
      return;
    }
    const std::vector<uint32_t> first = first_of_equals(from);
    std::unordered_map<uint32_t, uint32_t> slot_of;  // piece -> slot
    for (uint32_t i = 0; i < from.pieces.size(); ++i) {
      if (first[i] == i || volume(from.pieces[i].box) == 0) continue;
      if (!slot_of.contains(first[i])) slot_of[first[i]] = plan_.slots++;
      slot_of[i] = plan_.slots++;
      plan_.replicas.push_back({index, slot_of[first[i]], slot_of[i],
                                from.pieces[first[i]].extent.file,
                                from.pieces[i].extent.file});
    }
    std::vector<Placed> primaries;
    for (Placed& placed : sources) {
      const auto slot = slot_of.find(placed.piece);
      if (slot != slot_of.end()) placed.check = slot->second;
      (placed.primary ? primaries : replicas_).push_back(std::move(placed));
    }
    sources = std::move(primaries);
  }

  // A replica is read and digested into its own slot.
  void plan_replicas(Cells cells) {
    cells.digest = false;
    for (Placed& replica : replicas_) {
      Placed target = read_only(replica.box);
      merge(cells, {std::move(replica)}, {std::move(target)}, plan_);
    }
    replicas_.clear();
  }

  const Catalog& source_;
  const bool compare_replicas_;
  const bool whole_;  // the targets have whole tensors
  std::vector<Placed> replicas_;
  Plan plan_;
};

// Of two tensors that share an extent (tied weights), the first writes it; the
// second is still read, for its digest.
class Ties {
 public:
  bool first(const Tensor& tensor) {
    if (tensor.tie == 0 || tensor.pieces.empty()) return true;
    const Extent& extent = tensor.pieces[0].extent;
    return seen_.emplace(std::pair(extent.file, extent.offset), tensor.tie)
        .second;
  }

 private:
  struct Hash {
    size_t operator()(const std::pair<uint32_t, uint64_t>& key) const {
      return key.second * 0x9E3779B97F4A7C15 + key.first;
    }
  };
  std::unordered_map<std::pair<uint32_t, uint64_t>, uint32_t, Hash> seen_;
};

std::unordered_map<std::string_view, uint32_t> index_by_name(
    const Catalog& catalog) {
  std::unordered_map<std::string_view, uint32_t> index;
  index.reserve(catalog.tensors.size());
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i)
    if (!index.emplace(catalog.tensors[i].name, i).second)
      throw bug_error({catalog.path, catalog.tensors[i].name},
                      "the catalog has two tensors of this name");
  return index;
}

void check_same_content(const Tensor& from, const Tensor& to) {
  const bool same_elements =
      from.shape == to.shape ||
      (same_bytes(from.dtype, to.dtype) &&
       byte_size(from.dtype, from.shape) == byte_size(to.dtype, to.shape));
  if (!same_elements)
    throw unfaithful_error({{}, to.name},
                           "the source has shape {} {}, the target {} {}",
                           to_string(from.shape), name(from.dtype),
                           to_string(to.shape), name(to.dtype));
  if (!same_bytes(from.dtype, to.dtype) &&
      (element_size(from.dtype) == 0 || element_size(to.dtype) == 0))
    throw unfaithful_error({{}, to.name}, "{} can't be cast to {}",
                           name(from.dtype), name(to.dtype));
}

// Refuses a target that lacks tensors of the source, which would be lost.
void check_all_used(const Catalog& source, const Catalog& target) {
  const auto index = index_by_name(target);
  for (const Tensor& tensor : source.tensors)
    if (!index.contains(tensor.name))
      throw unfaithful_error({source.path, tensor.name},
                             "has no place in the target")
          .with_hint("leave it out by name: --exclude '" + tensor.name + "'");
}

// A tensor of the target and what it is made from.
struct Pair {
  const Tensor* from = nullptr;
  const Tensor* to = nullptr;
  bool written = true;  // false: a replica is written instead
};

std::vector<Pair> pair_up(const Catalog& source, const Target& target) {
  prove_file_cover(target);
  check_all_used(source, target.catalog);
  const auto by_name = index_by_name(source);
  std::vector<Pair> pairs;
  Ties ties;
  for (const Tensor& to : target.catalog.tensors) {
    const auto found = by_name.find(to.name);
    if (found == by_name.end())
      throw unfaithful_error({source.path, to.name},
                             "the target needs it, the source has none");
    const Tensor& from = source.tensors[found->second];
    check_same_content(from, to);
    pairs.push_back({&from, &to, ties.first(to)});
  }
  return pairs;
}

// Plans the pairs. They take the planner's first slots, in this order.
// `planned` is called after each.
void plan_pairs(std::span<const Pair> pairs, const Catalog& source,
                const Target& target, Planner& planner,
                const std::function<void(size_t)>& planned = {}) {
  for (const Pair& pair : pairs) planner.add_tensor(*pair.from, pair.to->dtype);
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    const auto& [from, to, written] = pairs[i];
    std::vector<Placed> targets = place(*to, target.catalog.path);
    if (!written)
      targets = {
          read_only(Box::whole(grid_of(from->dtype, from->shape).shape))};
    planner.plan_tensor(i, *from, std::move(targets), source.path);
    if (planned) planned(i);
  }
}

// Cuts runs of tensors with not many more pieces than `most`.
std::vector<std::span<const Pair>> cut_runs(std::span<const Pair> pairs,
                                            uint64_t most) {
  std::vector<std::span<const Pair>> runs;
  uint64_t pieces = most;
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pieces >= most) {
      runs.push_back(pairs.subspan(i, 0));
      pieces = 0;
    }
    pieces += pairs[i].from->pieces.size() + pairs[i].to->pieces.size();
    runs.back() = {runs.back().data(), runs.back().size() + 1};
  }
  return runs;
}

}  // namespace

Plan make_plan(const Catalog& source, const Target& target,
               bool compare_replicas) {
  Planner planner(source, compare_replicas);
  plan_pairs(pair_up(source, target), source, target, planner);
  return planner.finish();
}

Plan make_plan_of_size(const Catalog& source, const Target& target,
                       bool compare_replicas, const PlanSize& size) {
  Planner planner(source, compare_replicas);
  planner.reserve(size);
  plan_pairs(pair_up(source, target), source, target, planner);
  return planner.finish();
}

Plan make_plan_in_place(Catalog& source, Target& target, bool compare_replicas,
                        const PlanSize& size,
                        const std::function<bool(const Tensor&)>& keep) {
  // Lists of pieces lie between others: what they leave is given back in one
  // sweep over the heap, after some of it.
  constexpr uint64_t kSwept = 32 << 20;
  uint64_t left = 0;
  const auto let_go = [&](Tensor& tensor) {
    left += piece_bytes(tensor);
    std::vector<Piece>().swap(tensor.pieces);
  };
  Planner planner(source, compare_replicas);
  planner.reserve(size);
  const std::vector<Pair> pairs = pair_up(source, target);
  plan_pairs(pairs, source, target, planner, [&](size_t i) {
    const Tensor* const from = pairs[i].from;
    if (!keep(*from))
      let_go(source.tensors[static_cast<size_t>(from - source.tensors.data())]);
    let_go(target.catalog.tensors[i]);
    if (left < kSwept) return;
    heap::give_back();
    left = 0;
  });
  heap::give_back();
  return planner.finish();
}

namespace {

// The most that pieces and plan take while one takes the place of the other,
// run by run.
class Exchange {
 public:
  Exchange(const std::vector<std::span<const Pair>>& runs) {
    for (const auto& run : runs) {
      uint64_t bytes = 0;
      for (const Pair& pair : run)
        bytes += piece_bytes(*pair.from) + piece_bytes(*pair.to);
      pieces_.push_back(bytes);
    }
    plans_.resize(runs.size());
  }
  // Of tensors, which are there all the time, nothing.
  void set(size_t run, const Plan& part) {
    PlanSize size;
    size.add(part);
    size.tensors = 0;
    plans_[run] = size.bytes();
  }
  uint64_t most() const {
    uint64_t now = std::accumulate(pieces_.begin(), pieces_.end(), uint64_t{0});
    uint64_t highest = now;
    for (size_t run = 0; run < pieces_.size(); ++run) {
      now += plans_[run];
      highest = std::max(highest, now);
      now -= pieces_[run];
    }
    return highest;
  }

 private:
  std::vector<uint64_t> pieces_, plans_;
};

}  // namespace

// Tensors know nothing of each other, so that all processors may plan them.
Plan make_plan_sums(const Catalog& source, const Target& target,
                    bool compare_replicas, PlanSize& size, uint64_t kept,
                    const std::function<void(const Plan&)>& seen) {
  const std::vector<Pair> pairs = pair_up(source, target);
  const auto runs = cut_runs(pairs, kept);
  Planner whole(source, compare_replicas);
  if (runs.size() == 1) {
    plan_pairs(pairs, source, target, whole);
    Plan plan = whole.finish();
    size.add(plan);
    size.exchanged =
        piece_bytes(source) + piece_bytes(target.catalog) + size.bytes();
    if (seen) seen(plan);
    return plan;
  }
  for (const Pair& pair : pairs) whole.add_tensor(*pair.from, pair.to->dtype);
  Plan plan = whole.finish();
  size.tensors += plan.tensors.size();
  Exchange exchange(runs);
  std::mutex mutex;
  parallel_for(runs.size(), [&](size_t run) {
    Planner planner(source, compare_replicas);
    plan_pairs(runs[run], source, target, planner);
    const Plan part = planner.counted();
    const std::lock_guard lock(mutex);
    size.add(part);
    if (seen) seen(part);
    size.tensors -= part.tensors.size();  // they are counted
    exchange.set(run, part);
    plan.bytes_read += part.bytes_read;
    plan.bytes_written += part.bytes_written;
  });
  size.exchanged = exchange.most();
  return plan;
}

void leave_tensor_digests(Plan& plan) {
  // The jobs of casts say which elements to count once.
  for (const Job& job : plan.jobs) {
    if (plan.tensors[job.tensor].casts()) continue;
    for (Move& move : std::span(plan.moves).subspan(job.first_move, job.moves))
      move.digest = kNone;
  }
  for (Gather& gather : plan.gathers)
    if (!plan.tensors[gather.tensor].casts()) gather.digest = kNone;
}

// Tensor by tensor, so that errors are the same.
PlanSize count_read_plan(const Catalog& source, bool compare_replicas) {
  PlanSize size;
  for (const Tensor& tensor : source.tensors) {
    Planner planner(source, compare_replicas);
    planner.add_tensor(tensor, tensor.dtype);
    const Grid grid = grid_of(tensor.dtype, tensor.shape);
    planner.plan_tensor(0, tensor, {read_only(Box::whole(grid.shape))},
                        source.path);
    size.add(planner.finish());
  }
  return size;
}

Plan make_read_plan(const Catalog& source, bool compare_replicas,
                    const PlanSize* size) {
  Planner planner(source, compare_replicas);
  if (size) planner.reserve(*size);
  for (const Tensor& tensor : source.tensors)
    planner.add_tensor(tensor, tensor.dtype);
  for (uint32_t i = 0; i < source.tensors.size(); ++i) {
    const Tensor& tensor = source.tensors[i];
    const Grid grid = grid_of(tensor.dtype, tensor.shape);
    planner.plan_tensor(i, tensor, {read_only(Box::whole(grid.shape))},
                        source.path);
  }
  return planner.finish();
}

Plan make_box_plan(const Catalog& source, const Tensor& tensor,
                   const Box& box) {
  const bool packed = element_size(tensor.dtype) == 0;
  if (!inside(box, tensor.shape) || (packed && box != Box::whole(tensor.shape)))
    throw usage_error(
        {source.path, tensor.name}, "no box at {} of shape {} in shape {}",
        to_string(box.offset), to_string(box.shape), to_string(tensor.shape));
  Planner planner(source, false, false);
  planner.add_tensor(tensor, tensor.dtype);
  const Grid grid = grid_of(tensor.dtype, tensor.shape);
  Placed target = read_only(packed ? Box::whole(grid.shape) : box);
  target.strides = row_major_strides(target.box.shape);
  for (uint64_t& stride : target.strides) stride *= grid.element;
  target.file = 0;
  planner.plan_tensor(0, tensor, {std::move(target)}, source.path);
  return planner.finish();
}

}  // namespace ckpt::reshard
