// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/layout.h"

namespace ckpt::fairseq2 {
namespace {

bool is_split(const TpRule& rule, uint32_t tp) {
  return rule.state == TpRule::State::kSplit && tp > 1;
}

}  // namespace

bool divides(const Shape& global, const TpRule& rule, uint32_t tp) {
  if (!is_split(rule, tp)) return true;
  const uint64_t unit = uint64_t{tp} * rule.groups;
  return rule.dim < global.size() && global[rule.dim] % unit == 0;
}

Shape tp_local(const Shape& global, const TpRule& rule, uint32_t tp) {
  Shape local = global;
  if (is_split(rule, tp)) local[rule.dim] /= tp;
  return local;
}

std::optional<Shape> tp_global(const Shape& local, const TpRule& rule,
                               uint32_t tp) {
  Shape global = local;
  if (is_split(rule, tp)) {
    if (rule.dim >= local.size()) return std::nullopt;
    const auto size = checked_mul(local[rule.dim], tp);
    if (!size) return std::nullopt;
    global[rule.dim] = *size;
  }
  if (!element_count(global)) return std::nullopt;
  return global;
}

std::vector<cuts::Part> place(const Shape& global, const TpRule& rule,
                              uint32_t tp, uint32_t rank, const Rows& rows) {
  if (global.empty()) return {cuts::whole(global)};
  const size_t dim = is_split(rule, tp) ? rule.dim : 0;
  cuts::Runs runs = is_split(rule, tp)
                        ? cuts::chunks(global[dim], rule.groups, tp, rank)
                        : cuts::Runs{{0, 0, global[0]}};
  if (dim == 0) runs = cuts::slice(runs, rows);
  // No elements, but still a part.
  if (runs.empty()) runs.push_back({.whole = rows.begin});
  std::vector<cuts::Part> parts = cuts::parts(global, dim, runs);
  if (dim != 0)
    for (cuts::Part& part : parts) {
      part.box.offset[0] = rows.begin;
      part.box.shape[0] = rows.count();
    }
  return parts;
}

}  // namespace ckpt::fairseq2
