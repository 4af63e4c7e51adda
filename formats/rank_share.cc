// SPDX-License-Identifier: Apache-2.0
#include "formats/rank_share.h"

#include <utility>

#include "ckpt/error.h"
#include "formats/rank_cut.h"
#include "lib/text/format.h"

namespace ckpt::formats {

void share_by_rule(Tensor& tensor, const std::vector<size_t>& ranks,
                   uint64_t count, const families::Rules& user,
                   Catalog& catalog) {
  // A number without dimensions can't be a slice.
  if (tensor.shape.empty()) return;
  const TpRule rule =
      user.tp(tensor.param.empty() ? tensor.name : tensor.param);
  if (rule.state == TpRule::State::kUnknown) {
    if (ranks.size() > 1) set_aside(tensor, ranks, catalog);
    return;
  }
  tensor.tp = rule;
  if (rule.state == TpRule::State::kReplicated) return;
  const Where where{catalog.path, text::printable(tensor.name)};
  if (count < 2 || ranks.size() != count)
    throw unfaithful_error(where,
                           "{} says that it is cut, and {} of {} ranks have it",
                           user.source(), ranks.size(), count);
  if (rule.dim >= tensor.shape.size())
    throw usage_error(where, "{}: each rank has {}, which has no dimension {}",
                      user.source(), to_string(tensor.shape), rule.dim);
  const uint64_t local = tensor.shape[rule.dim];
  const auto size = checked_mul(local, count);
  const auto all = static_cast<uint32_t>(count);
  Cut cut;
  if (size && local % rule.groups == 0)
    cut = Cut::even(rule.dim, *size, rule.groups);
  const std::vector<Piece> slices = std::exchange(tensor.pieces, {});
  if (cut.whole() || !join_parts(cut, all, tensor))
    throw usage_error(where, "{}: {} on each of {} ranks are not {} groups",
                      user.source(), local, count, rule.groups);
  for (size_t i = 0; i < slices.size(); ++i)
    add_pieces(cut, all, static_cast<uint32_t>(ranks[i]), slices[i].extent,
               slices[i].transform, tensor);
}

}  // namespace ckpt::formats
