// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/boxes.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t count() const { return end - begin; }
};

// Part `rank` of `ranks` of torch.chunk.
Range chunk(uint64_t count, uint64_t ranks, uint64_t rank) {
  if (count == 0) return {};
  const uint64_t size = (count - 1) / ranks + 1;
  // rank * size may overflow for absurd counts; rank > count / size is past
  // the end anyway.
  const auto at = [&](uint64_t r) {
    return r > count / size ? count : std::min(r * size, count);
  };
  return {at(rank), at(rank + 1)};
}

}  // namespace

Cutter::Cutter(const Tensor& tensor, const TpRule& rule, bool rows,
               const Mesh& mesh)
    : shape_(tensor.shape), mesh_(mesh), box_(Box::whole(tensor.shape)) {
  rows_ = rows && !shape_.empty() && mesh.dp > 1;
  split_ = rule.state == TpRule::State::kSplit && mesh.tp > 1;
  if (!split_) return;
  dim_ = rule.dim;
  groups_ = std::max(1u, rule.groups);
  if (dim_ >= shape_.size() || shape_[dim_] % groups_ != 0)
    throw unfaithful_error({{}, text::printable(tensor.name)},
                           "{} can't be split along dimension {} in {} equal "
                           "groups",
                           to_string(shape_), dim_, groups_);
}

// One box of dimension sizes that are never negative; false for the parts of
// a group that are empty, but for the first.
bool Cutter::box_of(uint32_t tp, uint32_t dp, uint32_t group) const {
  const auto set = [&](size_t d, uint64_t begin, uint64_t count) {
    box_.offset[d] = count ? begin : shape_[d];
    box_.shape[d] = count;
  };
  if (!split_) {
    if (!rows_) return true;
    const Range rows = chunk(shape_[0], mesh_.dp, dp);
    set(0, rows.begin, rows.count());
    return true;
  }
  const uint64_t width = shape_[dim_] / groups_;
  const Range part = chunk(width, mesh_.tp, tp);
  if (dim_ != 0) {
    set(dim_, group * width + part.begin, part.count());
    if (rows_) {
      const Range rows = chunk(shape_[0], mesh_.dp, dp);
      set(0, rows.begin, rows.count());
    }
    return part.count() || group == 0;
  }
  // Rows of the groups' parts, one after the other, cut by dp.
  const Range mine = rows_ ? chunk(part.count() * groups_, mesh_.dp, dp)
                           : Range{0, part.count() * groups_};
  const uint64_t first = group * part.count();
  const uint64_t begin = std::clamp(mine.begin, first, first + part.count());
  const uint64_t end = std::clamp(mine.end, first, first + part.count());
  set(0, group * width + part.begin + (begin - first), end - begin);
  return end > begin || (group == 0 && mine.count() == 0);
}

Cutter::Replicas Cutter::replicas(uint32_t rank) const {
  const uint32_t tp = rank % mesh_.tp;
  const uint32_t dp = rank / mesh_.tp;
  if (split_ && rows_) return {rank, 1, 1};
  if (split_) return {tp, mesh_.tp, mesh_.dp};
  if (rows_) return {dp * mesh_.tp, 1, mesh_.tp};
  return {0, 1, mesh_.ranks()};
}

}  // namespace ckpt::dcp
