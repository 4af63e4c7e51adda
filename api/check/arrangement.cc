// SPDX-License-Identifier: Apache-2.0
#include "api/check/arrangement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "models/view.h"
#include "reshard/run/read.h"

namespace ckpt::library {
namespace {

using families::View;

constexpr uint64_t kMostHeadSize = 512;

// One way to rearrange A, computed only when it is tried.
struct Candidate {
  std::string text;
  std::function<View(const View&)> make;
  bool moves = true;  // the elements are the same
};

Shape split_rows(const View& view, std::initializer_list<uint64_t> factors) {
  Shape shape(factors);
  for (size_t d = 1; d < view.shape().size(); ++d)
    shape.push_back(view.shape()[d]);
  return shape;
}

View swap(const View& view, uint32_t a, uint32_t b) {
  std::vector<uint32_t> axes;
  for (uint32_t d = 0; d < view.shape().size(); ++d) axes.push_back(d);
  std::swap(axes[a], axes[b]);
  return view.permute(axes);
}

// Puts the parts of dimension 0, given by their sizes, in another order.
View reorder(const View& view, const std::vector<uint64_t>& sizes,
             const std::vector<size_t>& order) {
  std::vector<View> parts;
  std::vector<uint64_t> at{0};
  for (const uint64_t size : sizes) at.push_back(at.back() + size);
  parts.reserve(order.size());
  for (const size_t i : order) parts.push_back(view.slice(0, at[i], sizes[i]));
  return View::concat(parts, 0);
}

void add_rotary(uint64_t rows, std::vector<Candidate>& all) {
  for (uint64_t heads = 1; heads <= rows / 2; ++heads) {
    if (rows % (2 * heads) != 0 || rows / heads > kMostHeadSize) continue;
    const uint64_t half = rows / heads / 2;
    if (half < 2) continue;
    all.push_back({fmt::format("rotary rows: half-split in A, pairs in B ({} "
                               "heads of {})",
                               heads, 2 * half),
                   [=](const View& v) {
                     return swap(v.reshape(split_rows(v, {heads, 2, half})), 1,
                                 2)
                         .reshape(v.shape());
                   }});
    all.push_back({fmt::format("rotary rows: pairs in A, half-split in B ({} "
                               "heads of {})",
                               heads, 2 * half),
                   [=](const View& v) {
                     return swap(v.reshape(split_rows(v, {heads, half, 2})), 1,
                                 2)
                         .reshape(v.shape());
                   }});
  }
}

// [q q k v, q q k v, …] and [q q q q …, k k …, v v …]
void add_qkv(uint64_t rows, std::vector<Candidate>& all) {
  for (uint64_t size = 2; size <= std::min(rows / 3, kMostHeadSize); ++size) {
    if (rows % size != 0) continue;
    const uint64_t blocks = rows / size;
    for (uint64_t groups = 2; groups <= blocks / 3; ++groups) {
      if (blocks % groups != 0) continue;
      const uint64_t each = blocks / groups - 2;
      const std::string heads = fmt::format("{} heads of {} in {} groups",
                                            each * groups, size, groups);
      all.push_back(
          {"q, k, v: grouped in A, one after the other in B (" + heads + ")",
           [=](const View& v) {
             const View grouped =
                 v.reshape(split_rows(v, {groups, each + 2, size}));
             std::vector<View> parts;
             for (const auto& [at, count] :
                  {std::pair<uint64_t, uint64_t>{0, each},
                   {each, 1},
                   {each + 1, 1}})
               parts.push_back(
                   grouped.slice(1, at, count)
                       .reshape(split_rows(v, {groups * count * size})));
             return View::concat(parts, 0);
           }});
      all.push_back(
          {"q, k, v: one after the other in A, grouped in B (" + heads + ")",
           [=](const View& v) {
             std::vector<View> parts;
             uint64_t at = 0;
             for (const uint64_t count : {each, uint64_t{1}, uint64_t{1}}) {
               const uint64_t part = groups * count * size;
               parts.push_back(
                   v.slice(0, at, part)
                       .reshape(split_rows(v, {groups, count, size})));
               at += part;
             }
             return View::concat(parts, 1).reshape(v.shape());
           }});
    }
  }
}

// True for a vector of the model whose name is a norm's: "layers.0.attn_norm",
// "ln_f.weight". That a constant is another plus one says nothing of any other.
bool may_be_norm(const Tensor& tensor) {
  if (tensor.kind != Kind::model || tensor.shape.size() != 1) return false;
  std::string_view name = tensor.name;
  const auto last = [&] { return name.substr(name.rfind('.') + 1); };
  for (const std::string_view word : {"weight", "scale", "gamma"})
    if (last() == word)
      name.remove_suffix(std::min(name.size(), word.size() + 1));
  const std::string_view module = last();
  return module.find("norm") != module.npos || module.starts_with("ln") ||
         module.ends_with("ln");
}

std::vector<Candidate> candidates(const View& view, const Shape& wanted,
                                  bool norm) {
  std::vector<Candidate> all;
  const Shape& shape = view.shape();
  if (shape.size() == 2 && wanted.size() == 2 && wanted[0] == shape[1] &&
      wanted[1] == shape[0])
    all.push_back({"transposed", [](const View& v) { return swap(v, 0, 1); }});
  if (shape != wanted || shape.empty()) return all;
  const uint64_t rows = shape[0];
  if (rows % 2 == 0)
    all.push_back({"gate and up swapped", [=](const View& v) {
                     return reorder(v, {rows / 2, rows / 2}, {1, 0});
                   }});
  if (rows % 3 == 0) {
    const std::array<std::vector<size_t>, 5> orders{
        {{0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}};
    const std::string_view names = "qkv";
    for (const auto& order : orders)
      all.push_back(
          {fmt::format("q, k, v are in the order {}, {}, {} in B",
                       names[order[0]], names[order[1]], names[order[2]]),
           [=](const View& v) {
             return reorder(v, {rows / 3, rows / 3, rows / 3}, order);
           }});
  }
  if (norm) {
    all.push_back({"B is A plus one: the weights of a norm",
                   [](const View& v) { return v.transform(kAddOne); }, false});
    all.push_back({"A is B plus one: the weights of a norm",
                   [](const View& v) { return v.transform(kSubtractOne); },
                   false});
  }
  add_rotary(rows, all);
  add_qkv(rows, all);
  return all;
}

// Three rows are enough to reject most candidates; the rest are read whole.
std::vector<Box> samples(const Shape& shape) {
  std::vector<Box> boxes;
  for (const uint64_t at : {shape[0] / 3, shape[0] / 2, shape[0] - 1}) {
    Box box = Box::whole(shape);
    box.offset[0] = at;
    box.shape[0] = 1;
    boxes.push_back(box);
  }
  return boxes;
}

}  // namespace

std::optional<std::string> arrangement(const Catalog& a, const Tensor& x,
                                       const Catalog& b, const Tensor& y,
                                       const Engine& engine) {
  if (x.dtype != y.dtype || element_size(x.dtype) == 0 || y.shape.empty() ||
      volume(Box::whole(y.shape)) == 0)
    return std::nullopt;
  reshard::RunOptions run;
  run.threads = engine.threads;
  run.max_mem = std::max<uint64_t>(engine.max_mem / 4, 1 << 20);
  run.digest = false;
  const View view = View::of(x);
  const std::vector<Box> few = samples(y.shape);
  std::vector<std::vector<std::byte>> wanted;
  wanted.reserve(few.size());
  for (const Box& box : few) wanted.push_back(read_box(b, y, box, run));
  const auto equal = [&](const Tensor& made) {
    for (size_t i = 0; i < few.size(); ++i)
      if (read_box(a, made, few[i], run) != wanted[i]) return false;
    const auto tile = std::min<uint64_t>(engine.max_mem / 8, 64 << 20);
    return std::ranges::all_of(reshard::tiles(made, tile), [&](const Box& box) {
      return read_box(a, made, box, run) == read_box(b, y, box, run);
    });
  };
  for (const Candidate& candidate : candidates(view, y.shape, may_be_norm(x))) {
    if (interrupted()) return std::nullopt;
    Tensor made{.name = x.name};
    try {
      candidate.make(view).into(made);
      if (equal(made))
        return (candidate.moves ? "the same elements in another order: " : "") +
               candidate.text;
    } catch (const Error&) {
      continue;  // not applicable to this tensor: arithmetic on integers, say
    }
  }
  return std::nullopt;
}

}  // namespace ckpt::library
