// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/merge.h"

#include <algorithm>
#include <tuple>

#include "ckpt/error.h"

namespace ckpt::reshard {
namespace {

// Joins dimensions that no piece splits.

// The index in a dimension of one says nothing: drop it.
void drop(size_t d, Dims& dims) {
  Dims kept;
  for (size_t i = 0; i < dims.size(); ++i)
    if (i != d) kept.push_back(dims[i]);
  dims = std::move(kept);
}

template <class Change>
void for_each(std::vector<Placed>& sources, std::vector<Placed>& targets,
              Change change) {
  for (Placed& placed : sources) change(placed);
  for (Placed& placed : targets) change(placed);
}

bool joins(const Placed& placed, const Shape& shape, size_t d) {
  if (placed.box.shape[d + 1] != shape[d + 1]) return false;
  return placed.box.shape[d] == 1 ||
         placed.strides[d] == shape[d + 1] * placed.strides[d + 1];
}

void join(Placed& placed, const Shape& shape, size_t d) {
  placed.box.offset[d] *= shape[d + 1];
  placed.box.shape[d] *= shape[d + 1];
  placed.strides[d] = placed.strides[d + 1];
  drop(d + 1, placed.box.offset);
  drop(d + 1, placed.box.shape);
  drop(d + 1, placed.strides);
}

// Rewrites shape and boxes with as few dimensions as possible, at least one.
// Two neighbouring dimensions are joined if every box holds the inner one whole
// and steps through both with one stride.
void collapse(Shape& shape, std::vector<Placed>& sources,
              std::vector<Placed>& targets) {
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 || shape.size() == 1) continue;
    for_each(sources, targets, [&](Placed& placed) {
      drop(d, placed.box.offset);
      drop(d, placed.box.shape);
      drop(d, placed.strides);
    });
    drop(d, shape);
  }
  if (shape.empty()) {
    shape = Shape{1};
    for_each(sources, targets, [&](Placed& placed) {
      placed.box = Box::whole(shape);
      placed.strides = Dims{1};
    });
  }
  for (size_t d = shape.size() - 1; d-- > 0;) {
    bool all = true;
    for_each(sources, targets,
             [&](Placed& placed) { all = all && joins(placed, shape, d); });
    if (!all) continue;
    for_each(sources, targets, [&](Placed& placed) { join(placed, shape, d); });
    shape[d] *= shape[d + 1];
    drop(d + 1, shape);
  }
}

// Cuts sources along short dimensions that they don't step through in the
// tensor's order. The dimensions inside can then be joined: interleaved rows,
// [half, 2, width] in steps of (width, half * width, 1), become two boxes, each
// a matrix.
void cut_short_dims(const Shape& shape, std::vector<Placed>& sources) {
  constexpr uint64_t kShort = 8;
  for (size_t d = shape.size(); d-- > 1;) {
    if (d + 1 == shape.size() || shape[d] < 2 || shape[d] > kShort) continue;
    std::vector<Placed> cut;
    for (const Placed& placed : sources) {
      if (joins(placed, shape, d)) {
        cut.push_back(placed);
        continue;
      }
      for (uint64_t i = 0; i < placed.box.shape[d]; ++i) {
        Placed one = placed;
        one.box.offset[d] += i;
        one.box.shape[d] = 1;
        one.offset += i * placed.strides[d];
        cut.push_back(std::move(one));
      }
    }
    sources = std::move(cut);
  }
}

[[noreturn]] void throw_hole(const Cells& cells, const std::string& tensor,
                             const Box& box, uint64_t covered) {
  throw unfaithful_error({cells.path, tensor},
                         "no piece of the source holds {} of the {} elements "
                         "at {} of shape {}",
                         volume(box) - covered, volume(box),
                         to_string(box.offset), to_string(box.shape))
      .with_hint(
          "files of other ranks may be missing; `ckpt inspect --shards` lists "
          "the pieces that are here");
}

// Rows of contiguous elements that don't overlap (but may repeat).
bool lies_in_rows(const Placed& placed, uint64_t element) {
  const Dims& shape = placed.box.shape;
  if (shape.back() != 1 && placed.strides.back() != element) return false;
  if (shape.size() < 2 || shape[shape.size() - 2] == 1) return true;
  const uint64_t row_stride = placed.strides[shape.size() - 2];
  return row_stride == 0 || row_stride >= shape.back() * element;
}

// Adds views whose innermost dimension is not contiguous, to be copied element
// by element.
void add_gathers(const Cells& cells, const Shape& shape,
                 const std::vector<Placed>& sources,
                 const std::vector<Placed>& targets,
                 const std::vector<Box>& asked, Plan& plan) {
  const std::string& tensor = plan.tensors[cells.index].name;
  for (size_t i = 0; i < sources.size(); ++i)
    for (size_t j = i + 1; j < sources.size(); ++j)
      if (intersect(sources[i].box, sources[j].box))
        throw unfaithful_error({cells.path, tensor},
                               "elements are stored in two pieces that are "
                               "not the same");
  const Dims content = row_major_strides(shape);
  for (size_t t = 0; t < targets.size(); ++t) {
    const Placed& target = targets[t];
    uint64_t covered = 0;
    for (const Placed& source : sources) {
      const auto common = intersect(source.box, target.box);
      if (!common) continue;
      covered += volume(*common);
      Gather gather{.tensor = cells.index,
                    .source_file = source.file,
                    .target_file = target.file,
                    .transform = source.transform,
                    .source_offset = source.offset,
                    .target_offset = target.offset,
                    .shape = common->shape,
                    .source_strides = source.strides,
                    .target_strides = target.strides,
                    .content_strides = content};
      for (size_t d = 0; d < shape.size(); ++d) {
        gather.source_offset +=
            (common->offset[d] - source.box.offset[d]) * source.strides[d];
        gather.target_offset +=
            (common->offset[d] - target.box.offset[d]) * target.strides[d];
        gather.content += common->offset[d] * content[d];
      }
      if (target.primary && cells.digest) gather.digest = cells.index;
      if (target.primary) gather.check = source.check;
      plan.gathers.push_back(std::move(gather));
    }
    if (covered != volume(target.box))
      throw_hole(cells, tensor, asked[t], covered);
  }
}

// The part of a box in the matrix at one index of the outer dimensions.
Rect rect_of(const Placed& placed, const Dims& outer) {
  const size_t rank = placed.box.shape.size();
  Rect rect{.row_begin = 0,
            .row_end = 1,
            .begin = placed.box.offset[rank - 1],
            .end = placed.box.offset[rank - 1] + placed.box.shape[rank - 1],
            .offset = placed.offset,
            .file = placed.file,
            .check = placed.check,
            .transform = placed.transform,
            .primary = placed.primary};
  if (rank >= 2) {
    rect.row_begin = placed.box.offset[rank - 2];
    rect.row_end = rect.row_begin + placed.box.shape[rank - 2];
    rect.row_stride = placed.strides[rank - 2];
  }
  for (size_t d = 0; d < outer.size(); ++d)
    rect.offset += (outer[d] - placed.box.offset[d]) * placed.strides[d];
  return rect;
}

bool holds(const Placed& placed, const Dims& outer) {
  for (size_t d = 0; d < outer.size(); ++d)
    if (outer[d] - placed.box.offset[d] >= placed.box.shape[d]) return false;
  return true;
}

// Adds matrix after matrix over the dimensions before the last two.
void add_matrices(const Cells& cells, const Shape& shape,
                  const std::vector<Placed>& sources,
                  const std::vector<Placed>& targets,
                  const std::vector<Box>& asked, Plan& plan) {
  const size_t rank = shape.size();
  const size_t outers = rank > 2 ? rank - 2 : 0;
  const Dims content_strides = row_major_strides(shape);
  std::vector<uint64_t> covered(targets.size(), 0);
  std::vector<Rect> from, to;
  std::vector<size_t> to_index;
  Dims outer(outers, 0);
  while (true) {
    from.clear(), to.clear(), to_index.clear();
    for (const Placed& source : sources)
      if (holds(source, outer)) from.push_back(rect_of(source, outer));
    for (size_t i = 0; i < targets.size(); ++i) {
      if (!holds(targets[i], outer)) continue;
      to.push_back(rect_of(targets[i], outer));
      to_index.push_back(i);
    }
    uint64_t content = 0;
    for (size_t d = 0; d < outers; ++d)
      content += outer[d] * content_strides[d];
    add_slabs(cells, shape.back(), content, from, to, plan);
    for (size_t i = 0; i < to.size(); ++i)
      covered[to_index[i]] += to[i].covered;
    size_t d = outers;
    while (d > 0 && ++outer[d - 1] == shape[d - 1]) outer[--d] = 0;
    if (d == 0) break;
  }
  for (size_t i = 0; i < targets.size(); ++i)
    if (covered[i] != volume(targets[i].box))
      throw_hole(cells, plan.tensors[cells.index].name, asked[i], covered[i]);
}

// Refuses elements that no target takes, which would be lost.
void check_whole(const Cells& cells, const std::vector<Placed>& targets,
                 const Plan& plan) {
  uint64_t taken = 0;
  for (const Placed& target : targets)
    if (target.primary) taken += volume(target.box);
  const uint64_t all = element_count(cells.grid.shape).value_or(0);
  if (taken != all)
    throw unfaithful_error({{}, plan.tensors[cells.index].name},
                           "the target takes {} of {} elements", taken, all);
}

}  // namespace

void merge(const Cells& cells, std::vector<Placed> sources,
           std::vector<Placed> targets, Plan& plan) {
  if (cells.whole && cells.digest) check_whole(cells, targets, plan);
  std::erase_if(targets, [](const Placed& t) { return volume(t.box) == 0; });
  if (targets.empty()) return;
  std::vector<Box> asked;  // for messages
  for (const Placed& target : targets) asked.push_back(target.box);
  Shape shape = cells.grid.shape;
  if (cells.refined) cut_short_dims(shape, sources);
  collapse(shape, sources, targets);
  const bool in_rows = std::ranges::all_of(sources, [&](const Placed& source) {
    return lies_in_rows(source, cells.grid.element);
  });
  if (in_rows)
    add_matrices(cells, shape, sources, targets, asked, plan);
  else
    add_gathers(cells, shape, sources, targets, asked, plan);
}

void order_jobs(Plan& plan) {
  // Of equals the one that was planned first; a stable sort would take the
  // memory of half the jobs for it.
  std::ranges::sort(plan.jobs, [&](const Job& a, const Job& b) {
    const Lane& x = plan.lanes[a.first_source];
    const Lane& y = plan.lanes[b.first_source];
    return std::tie(x.file, x.offset, a.first_source, a.first_move) <
           std::tie(y.file, y.offset, b.first_source, b.first_move);
  });
}

void count_bytes(Plan& plan) {
  plan.bytes_read = plan.bytes_written = 0;
  std::vector<std::pair<uint64_t, uint64_t>> columns;
  for (const Job& job : plan.jobs) {
    for (uint32_t lane = 0; lane < job.sources; ++lane) {
      columns.clear();
      for (uint32_t m = 0; m < job.moves; ++m) {
        const Move& move = plan.moves[job.first_move + m];
        if (move.source == lane)
          columns.emplace_back(move.source_column,
                               move.source_column + move.bytes);
      }
      std::ranges::sort(columns);
      uint64_t end = 0;
      for (const auto& [begin, finish] : columns) {
        if (finish > end)
          plan.bytes_read += job.rows * (finish - std::max(begin, end));
        end = std::max(end, finish);
      }
    }
    for (uint32_t lane = 0; lane < job.targets; ++lane)
      plan.bytes_written +=
          job.rows * plan.lanes[job.first_target + lane].width;
  }
  for (const Gather& gather : plan.gathers) {
    const PlannedTensor& tensor = plan.tensors[gather.tensor];
    const uint64_t count = element_count(gather.shape).value_or(0);
    plan.bytes_read += count * element_size(tensor.source_dtype);
    if (gather.target_file != kNone)
      plan.bytes_written += count * element_size(tensor.target_dtype);
  }
}

}  // namespace ckpt::reshard
