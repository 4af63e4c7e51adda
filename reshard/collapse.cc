// SPDX-License-Identifier: Apache-2.0
#include "reshard/collapse.h"

namespace ckpt::reshard {
namespace {

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

}  // namespace

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

}  // namespace ckpt::reshard
