// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/boxes.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
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

// Sets one dimension of the box. Returns false for an empty range, which goes
// at the end.
bool Cutter::set(size_t d, uint64_t begin, uint64_t count) const {
  box_.offset[d] = count ? begin : shape_[d];
  box_.shape[d] = count;
  return count != 0;
}

cuts::Runs Cutter::runs(uint32_t tp, uint32_t dp) const {
  cuts::Runs runs = split_ ? cuts::chunks(shape_[dim_], groups_, mesh_.tp, tp)
                           : cuts::Runs{{0, 0, shape_[dim_]}};
  if (!rows_ || dim_ != 0) return runs;
  return cuts::slice(runs, cuts::chunk(cuts::count_of(runs), mesh_.dp, dp));
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
