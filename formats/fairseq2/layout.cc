// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/layout.h"

#include <algorithm>

namespace ckpt::fairseq2 {
namespace {

bool is_split(const TpRule& rule, uint32_t tp) {
  return rule.state == TpRule::State::kSplit && tp > 1;
}

}  // namespace

Rows chunk(uint64_t rows, uint64_t ranks, uint64_t rank) {
  const uint64_t size = rows / ranks + (rows % ranks != 0);
  // rank * size may overflow; no rank beyond the last full chunk needs it.
  const uint64_t begin = size == 0 || rank > rows / size ? rows : rank * size;
  return {begin, begin + std::min(size, rows - begin)};
}

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

std::vector<Placed> place(const Shape& global, const TpRule& rule, uint32_t tp,
                          uint32_t rank, const Rows& rows) {
  Placed all{Box::whole(global), Dims(global.size(), 0)};
  if (!global.empty()) {
    all.box.offset[0] = all.local[0] = rows.begin;
    all.box.shape[0] = rows.count();
  }
  if (!is_split(rule, tp)) return {all};

  // Local index g * width + i of the split dimension is global index
  // g * width * tp + rank * width + i.
  const uint32_t d = rule.dim;
  const uint64_t width = global[d] / tp / rule.groups;
  const Rows range = d == 0 ? rows : Rows{0, global[d] / tp};
  std::vector<Placed> placed;
  for (uint64_t at = range.begin; at < range.end;) {
    const uint64_t group = at / width;
    const uint64_t end = std::min(range.end, (group + 1) * width);
    Placed one = all;
    one.box.offset[d] = (group * tp + rank) * width + at % width;
    one.box.shape[d] = end - at;
    one.local[d] = at;
    placed.push_back(std::move(one));
    at = end;
  }
  if (placed.empty()) {  // no elements, but still a part
    all.box.offset[d] = rank * width;
    all.box.shape[d] = 0;
    placed.push_back(std::move(all));
  }
  return placed;
}

}  // namespace ckpt::fairseq2
