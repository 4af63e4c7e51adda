// SPDX-License-Identifier: Apache-2.0
#include "convert/rules/ops.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ckpt/error.h"

namespace ckpt::families {
namespace {

// The parameters of one operation, as numbers.
class Params {
 public:
  Params(const Op& op, const Instance& instance, const Numbers& numbers)
      : op_(op), instance_(instance), numbers_(numbers) {}

  uint64_t operator()(const char* name, const char* fallback) const {
    return numbers_.whole(op_, name, fallback, instance_.index);
  }
  uint32_t dim() const {
    const uint64_t dim = (*this)("dim", "0");
    if (dim > kMaxRank) throw unfaithful_error({}, "{}: dim {}", op_.name, dim);
    return static_cast<uint32_t>(dim);
  }
  // A list of expressions; empty if not given.
  std::vector<uint64_t> list(const char* name) const {
    const auto found = op_.params.find(name);
    return found == op_.params.end() ? std::vector<uint64_t>()
                                     : numbers_of(*found);
  }
  // One list for each tensor.
  std::vector<std::vector<uint64_t>> lists(const char* name) const {
    std::vector<std::vector<uint64_t>> all;
    for (const Json& one : op_.params.at(name)) all.push_back(numbers_of(one));
    return all;
  }

 private:
  std::vector<uint64_t> numbers_of(const Json& list) const {
    std::vector<uint64_t> values;
    for (const Json& item : list)
      values.push_back(numbers_.whole(
          item.is_string() ? item.get<std::string>() : item.dump(),
          instance_.index, op_.name));
    return values;
  }

  const Op& op_;
  const Instance& instance_;
  const Numbers& numbers_;
};

const View& only(const Op& op, const std::vector<View>& views) {
  if (views.size() != 1)
    throw unfaithful_error({}, "{} is for one tensor, not for {}", op.name,
                           views.size());
  return views[0];
}

// Cuts dimension 0 into `factors` and keeps the others.
Shape split_rows(const Shape& shape, std::initializer_list<uint64_t> factors) {
  Shape result(factors);
  for (size_t d = 1; d < shape.size(); ++d) result.push_back(shape[d]);
  return result;
}

void check_rows(const Op& op, const View& view, uint64_t rows,
                const std::string& why) {
  if (!view.shape().empty() && view.shape()[0] == rows) return;
  throw unfaithful_error({}, "{}: shape {}, {} rows are wanted: {}", op.name,
                         to_string(view.shape()), rows, why);
}

View swap(const View& view, uint32_t a, uint32_t b) {
  std::vector<uint32_t> axes;
  for (uint32_t d = 0; d < view.shape().size(); ++d) axes.push_back(d);
  std::swap(axes[a], axes[b]);
  return view.permute(axes);
}

// The last two dimensions: of stacked matrices, each is transposed.
View transposed(const View& view) {
  const auto rank = static_cast<uint32_t>(view.shape().size());
  return rank < 2 ? view : swap(view, rank - 2, rank - 1);
}

struct Heads {
  uint64_t heads, groups, size;
  uint64_t each() const { return heads / groups; }
  uint64_t rows() const { return (heads + 2 * groups) * size; }
};

Heads heads_of(const Op& op, const Params& params) {
  const Heads h{params("heads", "$nh"), params("groups", "$ng"),
                params("head_dim", "$hd")};
  if (h.groups == 0 || h.size == 0 || h.heads % h.groups != 0)
    throw unfaithful_error({}, "{}: {} heads of {} in {} groups", op.name,
                           h.heads, h.size, h.groups);
  return h;
}

std::string text_of(const Heads& h) {
  return fmt::format("{} heads, {} groups, head size {}", h.heads, h.groups,
                     h.size);
}

// Q, K, V ─► [groups, heads of a group + 2, size, …] ─► rows
View group_heads(const Op& op, const Heads& h, const std::vector<View>& qkv) {
  check_rows(op, qkv[0], h.heads * h.size, text_of(h));
  check_rows(op, qkv[1], h.groups * h.size, text_of(h));
  check_rows(op, qkv[2], h.groups * h.size, text_of(h));
  std::vector<View> parts;
  for (size_t i = 0; i < 3; ++i)
    parts.push_back(qkv[i].reshape(
        split_rows(qkv[i].shape(), {h.groups, i == 0 ? h.each() : 1, h.size})));
  return View::concat(parts, 1).reshape(split_rows(qkv[0].shape(), {h.rows()}));
}

std::vector<View> ungroup_heads(const Op& op, const Heads& h,
                                const View& view) {
  check_rows(op, view, h.rows(), text_of(h));
  const View grouped =
      view.reshape(split_rows(view.shape(), {h.groups, h.each() + 2, h.size}));
  const uint64_t at[] = {0, h.each(), h.each() + 1, h.each() + 2};
  std::vector<View> qkv;
  for (size_t i = 0; i < 3; ++i) {
    const View part = grouped.slice(1, at[i], at[i + 1] - at[i]);
    qkv.push_back(part.reshape(
        split_rows(view.shape(), {h.groups * (at[i + 1] - at[i]) * h.size})));
  }
  return qkv;
}

// K, V ─► [groups, 2, size, …] ─► rows, as cross attention has them
View pair_heads(const Op& op, const Params& params,
                const std::vector<View>& kv) {
  const uint64_t groups = params("groups", "$ng");
  const uint64_t size = params("head_dim", "$hd");
  std::vector<View> parts;
  for (const View& one : kv) {
    check_rows(op, one, checked_mul(groups, size).value_or(0),
               fmt::format("{} groups, head size {}", groups, size));
    parts.push_back(one.reshape(split_rows(one.shape(), {groups, 1, size})));
  }
  return View::concat(parts, 1).reshape(
      split_rows(kv[0].shape(), {2 * groups * size}));
}

std::vector<View> unpair_heads(const Op& op, const Params& params,
                               const View& view) {
  const uint64_t groups = params("groups", "$ng");
  const uint64_t size = params("head_dim", "$hd");
  const auto half = checked_mul(groups, size);
  check_rows(op, view, checked_mul(half.value_or(0), 2).value_or(0),
             fmt::format("{} groups, head size {}", groups, size));
  const View pairs = view.reshape(split_rows(view.shape(), {groups, 2, size}));
  std::vector<View> kv;
  for (uint64_t i = 0; i < 2; ++i)
    kv.push_back(
        pairs.slice(1, i, 1).reshape(split_rows(view.shape(), {*half})));
  return kv;
}

// Each query head's rows have its gate's behind them. Megatron's groups hold
// the query heads, their gates, the key and the value.
View group_gated(const Op& op, const Heads& h, const std::vector<View>& qkv) {
  check_rows(op, qkv[0], 2 * h.heads * h.size, text_of(h));
  check_rows(op, qkv[1], h.groups * h.size, text_of(h));
  check_rows(op, qkv[2], h.groups * h.size, text_of(h));
  const View q = qkv[0].reshape(
      split_rows(qkv[0].shape(), {h.groups, h.each(), 2, h.size}));
  std::vector<View> parts;
  for (uint64_t gate = 0; gate < 2; ++gate)
    parts.push_back(
        q.slice(2, gate, 1)
            .reshape(split_rows(qkv[0].shape(), {h.groups, h.each(), h.size})));
  for (size_t i = 1; i < 3; ++i)
    parts.push_back(
        qkv[i].reshape(split_rows(qkv[i].shape(), {h.groups, 1, h.size})));
  return View::concat(parts, 1).reshape(
      split_rows(qkv[0].shape(), {(2 * h.heads + 2 * h.groups) * h.size}));
}

std::vector<View> ungroup_gated(const Op& op, const Heads& h,
                                const View& view) {
  check_rows(op, view, (2 * h.heads + 2 * h.groups) * h.size, text_of(h));
  const View grouped = view.reshape(
      split_rows(view.shape(), {h.groups, 2 * h.each() + 2, h.size}));
  std::vector<View> halves;
  for (uint64_t gate = 0; gate < 2; ++gate)
    halves.push_back(grouped.slice(1, gate * h.each(), h.each())
                         .reshape(split_rows(view.shape(),
                                             {h.groups, h.each(), 1, h.size})));
  std::vector<View> qkv{View::concat(halves, 2).reshape(
      split_rows(view.shape(), {2 * h.heads * h.size}))};
  for (uint64_t i = 0; i < 2; ++i)
    qkv.push_back(grouped.slice(1, 2 * h.each() + i, 1)
                      .reshape(split_rows(view.shape(), {h.groups * h.size})));
  return qkv;
}

// Rows of one group. Sizes come from a configuration, so expect any number.
uint64_t rows_of(const Op& op, uint64_t groups,
                 const std::vector<uint64_t>& sizes) {
  std::optional<uint64_t> all = 0;
  for (const uint64_t size : sizes)
    all = all && size != 0 ? checked_add(*all, size) : std::nullopt;
  if (!all || !checked_mul(*all, groups) || groups == 0)
    throw unfaithful_error({}, "{}: {} groups of {} rows", op.name, groups,
                           fmt::join(sizes, " + "));
  return *all;
}

// Tensors that hold for each group its parts ─► the first part of all groups,
// then the second …
View part_by_part(const Op& op, const Params& params,
                  const std::vector<View>& views) {
  const uint64_t groups = params("groups", "1");
  const auto lists = params.lists("sizes");
  std::vector<View> parts;
  for (size_t i = 0; i < views.size(); ++i) {
    const uint64_t rows = rows_of(op, groups, lists.at(i));
    check_rows(op, views[i], groups * rows,
               fmt::format("{} groups of {}", groups, rows));
    const View grouped =
        views[i].reshape(split_rows(views[i].shape(), {groups, rows}));
    uint64_t at = 0;
    for (const uint64_t size : lists[i]) {
      parts.push_back(
          grouped.slice(1, at, size)
              .reshape(split_rows(views[i].shape(), {groups * size})));
      at += size;
    }
  }
  return View::concat(parts, 0);
}

std::vector<View> group_by_group(const Op& op, const Params& params,
                                 const View& view) {
  const uint64_t groups = params("groups", "1");
  const auto lists = params.lists("sizes");
  std::vector<uint64_t> each;
  each.reserve(lists.size());
  for (const auto& sizes : lists) each.push_back(rows_of(op, groups, sizes));
  const uint64_t rows = rows_of(op, groups, each);
  check_rows(op, view, groups * rows,
             fmt::format("{} groups of {}", groups, rows));
  std::vector<View> views;
  uint64_t at = 0;
  for (const auto& sizes : lists) {
    std::vector<View> parts;
    for (const uint64_t size : sizes) {
      parts.push_back(view.slice(0, at, groups * size)
                          .reshape(split_rows(view.shape(), {groups, size})));
      at += groups * size;
    }
    views.push_back(View::concat(parts, 1).reshape(
        split_rows(view.shape(), {groups * rows_of(op, groups, sizes)})));
  }
  return views;
}

std::vector<View> split_qkv(const Op& op, const Heads& h, const View& view) {
  check_rows(op, view, h.rows(), text_of(h));
  const uint64_t q = h.heads * h.size, kv = h.groups * h.size;
  return {view.slice(0, 0, q), view.slice(0, q, kv), view.slice(0, q + kv, kv)};
}

// One behind the other along a new dimension, before the others.
View stacked(std::vector<View> views) {
  for (View& view : views) {
    Shape shape{1};
    for (const uint64_t size : view.shape()) shape.push_back(size);
    view = view.reshape(shape);
  }
  return View::concat(views, 0);
}

std::vector<View> unstacked(const View& view, size_t count) {
  if (view.shape().empty() || view.shape()[0] != count)
    throw unfaithful_error({}, "shape {} for {} tensors",
                           to_string(view.shape()), count);
  std::vector<View> views;
  Shape rest;
  for (size_t d = 1; d < view.shape().size(); ++d)
    rest.push_back(view.shape()[d]);
  for (size_t i = 0; i < count; ++i)
    views.push_back(view.slice(0, i, 1).reshape(rest));
  return views;
}

// [heads, a, b, …] ─► [heads, b, a, …], as rows; one of a and b is two.
View swap_rows(const Op& op, const View& view, uint64_t heads, bool forward) {
  const uint64_t rows = view.shape().empty() ? 0 : view.shape()[0];
  if (heads == 0 || rows % (2 * heads) != 0)
    throw unfaithful_error({}, "{}: {} heads in shape {}", op.name, heads,
                           to_string(view.shape()));
  const uint64_t half = rows / heads / 2;
  const Shape apart = forward ? split_rows(view.shape(), {heads, 2, half})
                              : split_rows(view.shape(), {heads, half, 2});
  return swap(view.reshape(apart), 1, 2).reshape(view.shape());
}

std::vector<View> split(const Params& params, const View& view, size_t count) {
  const uint32_t dim = params.dim();
  std::vector<uint64_t> sizes = params.list("sizes");
  const uint64_t all = dim < view.shape().size() ? view.shape()[dim] : 0;
  if (sizes.empty()) {
    if (count == 0 || all % count != 0)
      throw unfaithful_error({}, "dimension {} of shape {} in {} equal parts",
                             dim, to_string(view.shape()), count);
    sizes.assign(count, all / count);
  }
  std::vector<View> parts;
  uint64_t at = 0;
  for (const uint64_t size : sizes) {
    parts.push_back(view.slice(dim, at, size));
    at += size;
  }
  if (at != all || parts.size() != count)
    throw unfaithful_error({}, "{} parts of {} elements of dimension {} of {}",
                           parts.size(), at, dim, to_string(view.shape()));
  return parts;
}

uint8_t arithmetic(const Op& op, bool forward) {
  const auto value = op.params.find("value");
  const double number =
      value != op.params.end() && value->is_number() ? value->get<double>() : 0;
  if (number == 1) return forward ? kAddOne : kSubtractOne;
  if (number == -1) return forward ? kSubtractOne : kAddOne;
  throw unfaithful_error({}, "add: 1 and -1 are all that can be added");
}

View index_of(const Op& op, const Instance& instance, const View& view) {
  const auto name = op.params.find("index");
  const auto at = name == op.params.end()
                      ? instance.index.end()
                      : instance.index.find(name->get<std::string>());
  if (at == instance.index.end() || view.shape().size() < 2)
    throw unfaithful_error({}, "index: shape {}", to_string(view.shape()));
  Shape rest;
  for (size_t d = 1; d < view.shape().size(); ++d)
    rest.push_back(view.shape()[d]);
  return view.slice(0, at->second, 1).reshape(rest);
}

// A dimension that holds for each group its parts, one of which is meant.
struct GroupParts {
  uint32_t dim;
  uint64_t groups, at;
  std::vector<uint64_t> sizes;
};

GroupParts parts_of(const Op& op, const Params& params) {
  GroupParts parts{.dim = params.dim(),
                   .groups = params("groups", "1"),
                   .at = params("at", "0"),
                   .sizes = params.list("sizes")};
  rows_of(op, parts.groups, parts.sizes);
  if (parts.at >= parts.sizes.size())
    throw unfaithful_error({}, "part: number {} of {}", parts.at,
                           parts.sizes.size());
  return parts;
}

// The shape with the dimension cut in groups and what each holds, or whole.
Shape cut_in(const Shape& shape, const GroupParts& parts, uint64_t each,
             bool whole) {
  Shape made;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d != parts.dim) {
      made.push_back(shape[d]);
    } else if (whole) {
      made.push_back(parts.groups * each);
    } else {
      made.push_back(parts.groups);
      made.push_back(each);
    }
  }
  return made;
}

View part_of(const Op& op, const Params& params, const View& view) {
  const GroupParts parts = parts_of(op, params);
  const uint64_t each = rows_of(op, parts.groups, parts.sizes);
  const Shape& shape = view.shape();
  if (parts.dim >= shape.size() || shape[parts.dim] != parts.groups * each)
    throw unfaithful_error({}, "part: shape {} where dimension {} is {} of {}",
                           to_string(shape), parts.dim, parts.groups, each);
  uint64_t begin = 0;
  for (uint64_t i = 0; i < parts.at; ++i) begin += parts.sizes[i];
  const uint64_t size = parts.sizes[parts.at];
  return view.reshape(cut_in(shape, parts, each, false))
      .slice(parts.dim + 1, begin, size)
      .reshape(cut_in(shape, parts, size, true));
}

View whole_of_parts(const Op& op, const Params& params,
                    const std::vector<View>& slices) {
  const GroupParts parts = parts_of(op, params);
  if (slices.size() != parts.sizes.size())
    throw unfaithful_error({}, "{} of {} parts", slices.size(),
                           parts.sizes.size());
  std::vector<View> views;
  views.reserve(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const Shape& shape = slices[i].shape();
    if (parts.dim >= shape.size() ||
        shape[parts.dim] != parts.groups * parts.sizes[i])
      throw unfaithful_error({},
                             "part: shape {} where dimension {} is {} of "
                             "{}",
                             to_string(shape), parts.dim, parts.groups,
                             parts.sizes[i]);
    views.push_back(
        slices[i].reshape(cut_in(shape, parts, parts.sizes[i], false)));
  }
  return View::concat(views, parts.dim + 1)
      .reshape(cut_in(slices[0].shape(), parts,
                      rows_of(op, parts.groups, parts.sizes), true));
}

// Older files store some matrices as [columns, rows].
View upright(const Op& op, const Params& params, const View& view) {
  const Shape shape{params("rows", "0"), params("columns", "0")};
  if (view.shape() == shape && shape[0] != shape[1]) return view;
  if (view.shape() == Shape{shape[1], shape[0]} && shape[0] != shape[1])
    return transposed(view);
  throw unfaithful_error({}, "{}: shape {}, {} or its transpose is wanted{}",
                         op.name, to_string(view.shape()), to_string(shape),
                         shape[0] == shape[1] ? ", which look the same" : "");
}

// Moves the first `rows` rows behind the others.
View rolled(const Op& op, const View& view, uint64_t rows, bool forward) {
  const uint64_t all = view.shape().empty() ? 0 : view.shape()[0];
  if (rows == 0 || rows >= all)
    throw unfaithful_error({}, "{}: {} rows of shape {}", op.name, rows,
                           to_string(view.shape()));
  const uint64_t at = forward ? rows : all - rows;
  const std::vector<View> parts{view.slice(0, at, all - at),
                                view.slice(0, 0, at)};
  return View::concat(parts, 0);
}

// Heads in groups that share something, [groups, each, size], in the order in
// which ggml repeats what they share: [each, groups, size]. What is before
// `from` stays.
View tiled(const Op& op, const Params& params, const View& view, bool forward) {
  const uint32_t dim = params.dim();
  const uint64_t from = params("from", "0");
  const uint64_t groups = params("groups", "1");
  const uint64_t size = params("size", "1");
  const uint64_t all = dim < view.shape().size() ? view.shape()[dim] : 0;
  const uint64_t unit = checked_mul(groups, size).value_or(0);
  if (unit == 0 || from >= all || (all - from) % unit != 0)
    throw unfaithful_error({}, "{}: {} groups of {} past {} in shape {}",
                           op.name, groups, size, from,
                           to_string(view.shape()));
  const uint64_t each = (all - from) / unit;
  const View heads = view.slice(dim, from, all - from);
  const GroupParts outer{dim, forward ? groups : each, 0, {}};
  const GroupParts inner{dim + 1, forward ? each : groups, 0, {}};
  const Shape apart =
      cut_in(cut_in(heads.shape(), outer, inner.groups * size, false), inner,
             size, false);
  const View turned =
      swap(heads.reshape(apart), dim, dim + 1).reshape(heads.shape());
  if (from == 0) return turned;
  const std::vector<View> parts{view.slice(dim, 0, from), turned};
  return View::concat(parts, dim);
}

// Turns the rows of q and k between halves of a head and pairs, if the rule
// says that the dialect's are pairs.
void turn_pairs(const Op& op, const Params& params, std::vector<View>& qkv,
                bool forward) {
  if (params("pairs", "0") == 0) return;
  const Heads h = heads_of(op, params);
  qkv[0] = swap_rows(op, qkv[0], h.heads, forward);
  if (qkv.size() > 1) qkv[1] = swap_rows(op, qkv[1], h.groups, forward);
}

std::vector<View> step(const Op& op, const Params& params,
                       const Instance& instance, std::vector<View> views) {
  const std::string& name = op.name;
  if (name == "cat") return {View::concat(views, params.dim())};
  if (name == "stack") return {stacked(std::move(views))};
  if (name == "qkv") {
    if (views.size() == 2) views.push_back(views[1]);  // keys are the values
    if (views.size() != 3)
      throw unfaithful_error({}, "qkv of {} tensors", views.size());
    turn_pairs(op, params, views, true);
    return {group_heads(op, heads_of(op, params), views)};
  }
  if (name == "qkv_gated" && views.size() == 3)
    return {group_gated(op, heads_of(op, params), views)};
  if (name == "kv" && views.size() == 2) return {pair_heads(op, params, views)};
  if (name == "ungroup") return {part_by_part(op, params, views)};
  const View& view = only(op, views);
  if (name == "copy" || name == "vocab") return views;
  if (name == "t") return {transposed(view)};
  if (name == "qkv_cat") {
    const Heads h = heads_of(op, params);
    return {group_heads(op, h, split_qkv(op, h, view))};
  }
  if (name == "rope_interleave")
    return {swap_rows(op, view, params("heads", "$nh"), true)};
  // Rows 0, 2, 4 … then 1, 3, 5 …: pairs apart.
  if (name == "deinterleave") return {swap_rows(op, view, 1, false)};
  if (name == "roll") return {rolled(op, view, params("rows", "0"), true)};
  if (name == "tile") return {tiled(op, params, view, true)};
  if (name == "add") return {view.transform(arithmetic(op, true))};
  if (name == "decay") return {view.transform(kNegatedExp)};
  if (name == "index") return {index_of(op, instance, view)};
  if (name == "part") return {part_of(op, params, view)};
  if (name == "upright") return {upright(op, params, view)};
  if (name == "reshape") return {view.reshape(Shape(params.list("to")))};
  throw bug_error({}, "no operation {}", name);
}

std::vector<View> undo(const Op& op, const Params& params, const View& view,
                       size_t count, const Numbers& numbers) {
  const std::string& name = op.name;
  if (name == "copy" || name == "index" || name == "part" || name == "upright")
    return {view};
  if (name == "t") return {transposed(view)};
  if (name == "vocab") {
    const uint64_t rows = numbers.whole("$V", {}, "rows of the vocabulary");
    if (view.shape().empty() || view.shape()[0] < rows)
      throw unfaithful_error({},
                             "shape {} has less than the {} rows of the "
                             "vocabulary ({})",
                             to_string(view.shape()), rows, numbers.source())
          .with_hint("--vocab-size says how many rows are real");
    return {view.slice(0, 0, rows)};
  }
  if (name == "cat") return split(params, view, count);
  if (name == "stack") return unstacked(view, count);
  if (name == "qkv") {
    std::vector<View> parts = ungroup_heads(op, heads_of(op, params), view);
    turn_pairs(op, params, parts, false);
    parts.resize(std::min(count, parts.size()));
    return parts;
  }
  if (name == "qkv_gated") return ungroup_gated(op, heads_of(op, params), view);
  if (name == "kv") return unpair_heads(op, params, view);
  if (name == "ungroup") return group_by_group(op, params, view);
  if (name == "qkv_cat")
    return {View::concat(ungroup_heads(op, heads_of(op, params), view), 0)};
  if (name == "rope_interleave")
    return {swap_rows(op, view, params("heads", "$nh"), false)};
  if (name == "deinterleave") return {swap_rows(op, view, 1, true)};
  if (name == "roll") return {rolled(op, view, params("rows", "0"), false)};
  if (name == "tile") return {tiled(op, params, view, false)};
  if (name == "add") return {view.transform(arithmetic(op, false))};
  if (name == "decay") return {view.transform(kLogOfNegated)};
  if (name == "reshape") return {view.reshape(Shape(params.list("from")))};
  throw bug_error({}, "no operation {}", name);
}

// Rows of zeros for the keys and values of a layer that has none.
std::vector<View> with_zeros(const Op& op, const Heads& h, const View& q,
                             Catalog& catalog, DType dtype) {
  const auto rows = checked_mul(h.groups, h.size);
  if (!rows || q.shape().empty())
    throw unfaithful_error({}, "{}: shape {}", op.name, to_string(q.shape()));
  const View zeros =
      View::filled(catalog, dtype, split_rows(q.shape(), {*rows}), 0);
  return {q, zeros, zeros};
}

const Op* find_op(const Rule& rule, std::string_view name) {
  const auto found = std::ranges::find(rule.ops, name, &Op::name);
  return found == rule.ops.end() ? nullptr : &*found;
}

}  // namespace

View forward(const Instance& instance, std::vector<View> hf,
             const Numbers& numbers, Catalog& catalog, DType dtype) {
  if (const auto value = constant_of(*instance.rule)) {
    const Op& op = *find_op(*instance.rule, "const");
    const Shape shape(Params(op, instance, numbers).list("shape"));
    return View::filled(catalog, dtype, shape, *value);
  }
  for (const Op& op : instance.rule->ops) {
    const Params params(op, instance, numbers);
    if (op.name == "qkv" && hf.size() == 1)
      hf = with_zeros(op, heads_of(op, params), hf[0], catalog, dtype);
    hf = step(op, params, instance, std::move(hf));
  }
  if (hf.size() != 1)
    throw unfaithful_error({}, "{} tensors for one name", hf.size());
  return std::move(hf[0]);
}

std::vector<View> backward(const Instance& instance, const View& target,
                           const Numbers& numbers) {
  if (constant_of(*instance.rule)) return {};
  std::vector<View> views{target};
  const auto& ops = instance.rule->ops;
  for (auto op = ops.rbegin(); op != ops.rend(); ++op)
    views = undo(*op, Params(*op, instance, numbers), only(*op, views),
                 instance.hf.size(), numbers);
  if (views.size() != instance.hf.size())
    throw unfaithful_error({}, "{} tensors for {} names", views.size(),
                           instance.hf.size());
  return views;
}

bool takes_slice(const Rule& rule) {
  return find_op(rule, "index") != nullptr || find_op(rule, "part") != nullptr;
}

std::optional<uint64_t> slice_of(const Instance& instance,
                                 const Numbers& numbers) {
  if (const Op* op = find_op(*instance.rule, "index"))
    return instance.index.at(op->params.value("index", std::string()));
  if (const Op* op = find_op(*instance.rule, "part"))
    return Params(*op, instance, numbers)("at", "0");
  return std::nullopt;
}

View joined(const Instance& instance, const std::vector<View>& slices,
            const Numbers& numbers) {
  if (const Op* op = find_op(*instance.rule, "part"))
    return whole_of_parts(*op, Params(*op, instance, numbers), slices);
  return View::stack(slices);
}

std::optional<double> constant_of(const Rule& rule) {
  const Op* op = find_op(rule, "const");
  if (!op) return std::nullopt;
  return op->params.value("value", 0.0);
}

bool drops_rows(const Rule& rule) {
  return find_op(rule, "qkv") != nullptr && rule.hf.size() < 3;
}

bool is_copy(const Rule& rule) {
  return rule.hf.size() == 1 && rule.each.empty() &&
         std::ranges::all_of(rule.ops,
                             [](const Op& op) { return op.name == "copy"; });
}

}  // namespace ckpt::families
