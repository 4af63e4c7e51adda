#include "reshard/plan.h"

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "reshard/cover.h"
#include "reshard/merge.h"
#include "reshard/placed.h"
#include "reshard/plan_size.h"

namespace ckpt::reshard {
namespace {

// One target box without a file: the elements are read and digested only.
Placed read_only(const Box& box) {
  return {.box = box, .strides = Dims(box.shape.size(), 0)};
}

class Planner {
 public:
  // With `sums` what is planned is counted there, and not kept.
  Planner(const Catalog& source, bool compare_replicas, bool whole = true,
          PlanSize* sums = nullptr, uint64_t kept = 0)
      : source_(source),
        compare_replicas_(compare_replicas),
        whole_(whole),
        sums_(sums),
        kept_(kept) {}

  // The digest slots of all tensors come first, so all are added first.
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
    if (sums_ != nullptr && plan_.jobs.size() + plan_.gathers.size() > kept_)
      let_go();
  }

  Plan finish() {
    if (sums_ != nullptr) sums_->add(plan_);
    count_bytes(plan_);
    plan_.bytes_read += read_;
    plan_.bytes_written += written_;
    order_jobs(plan_);
    return std::move(plan_);
  }

 private:
  void let_go() {
    sums_->add(plan_);
    count_bytes(plan_);
    read_ += plan_.bytes_read;
    written_ += plan_.bytes_written;
    plan_.jobs.clear();
    plan_.lanes.clear();
    plan_.moves.clear();
    plan_.gathers.clear();
  }

  // Targets count in the tensor's shape, its pieces in something finer.
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
  const bool whole_;  // the targets hold whole tensors
  PlanSize* const sums_;
  const uint64_t kept_;
  uint64_t read_ = 0, written_ = 0;  // bytes of what was let go
  std::vector<Placed> replicas_;
  Plan plan_;
};

// A tensor that shares its extent with another (tied weights) is written by
// the first of the two; the second is still read, for its digest.
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

// Tensors of the source that the target lacks would be lost.
void check_all_used(const Catalog& source, const Catalog& target) {
  const auto index = index_by_name(target);
  for (const Tensor& tensor : source.tensors)
    if (!index.contains(tensor.name))
      throw unfaithful_error({source.path, tensor.name},
                             "has no place in the target")
          .with_hint("leave it out by name: --exclude '" + tensor.name + "'");
}

Plan plan_all(const Catalog& source, const Target& target,
              bool compare_replicas, PlanSize* sums, uint64_t kept) {
  prove_file_cover(target);
  check_all_used(source, target.catalog);
  const auto by_name = index_by_name(source);
  Planner planner(source, compare_replicas, true, sums, kept);
  std::vector<const Tensor*> from;
  for (const Tensor& to : target.catalog.tensors) {
    const auto found = by_name.find(to.name);
    if (found == by_name.end())
      throw unfaithful_error({source.path, to.name},
                             "the target needs it, the source has none");
    from.push_back(&source.tensors[found->second]);
    check_same_content(*from.back(), to);
    planner.add_tensor(*from.back(), to.dtype);
  }
  Ties ties;
  for (uint32_t i = 0; i < from.size(); ++i) {
    const Tensor& to = target.catalog.tensors[i];
    std::vector<Placed> targets = place(to, target.catalog.path);
    if (!ties.first(to))
      targets = {
          read_only(Box::whole(grid_of(from[i]->dtype, from[i]->shape).shape))};
    planner.plan_tensor(i, *from[i], std::move(targets), source.path);
  }
  return planner.finish();
}

}  // namespace

void PlanSize::add(const Plan& plan) {
  jobs += plan.jobs.size();
  lanes += plan.lanes.size();
  moves += plan.moves.size();
  gathers += plan.gathers.size();
}

uint64_t PlanSize::bytes() const {
  return jobs * sizeof(Job) + lanes * sizeof(Lane) + moves * sizeof(Move) +
         gathers * sizeof(Gather);
}

Plan make_plan(const Catalog& source, const Target& target,
               bool compare_replicas) {
  return plan_all(source, target, compare_replicas, nullptr, 0);
}

Plan make_plan_sums(const Catalog& source, const Target& target,
                    bool compare_replicas, PlanSize& size, uint64_t kept) {
  return plan_all(source, target, compare_replicas, &size, kept);
}

Plan make_read_plan(const Catalog& source, bool compare_replicas) {
  Planner planner(source, compare_replicas);
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
