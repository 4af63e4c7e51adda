// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/models/titan_views.h"

#include "ckpt/error.h"

namespace ckpt::runs::titan {

using families::View;

namespace {

using Sizes = std::vector<uint64_t>;

Sizes sizes_of(const View& view) {
  return {view.shape().begin(), view.shape().end()};
}

}  // namespace

View turn(const View& view, uint64_t heads, bool to_pairs) {
  const Shape& shape = view.shape();
  if (shape.empty() || shape.size() > 2 || shape[0] % (2 * heads) != 0)
    throw unfaithful_error({}, "shape {} is not of {} heads", to_string(shape),
                           heads);
  const uint64_t half = shape[0] / heads / 2;
  Sizes split = to_pairs ? Sizes{heads, 2, half} : Sizes{heads, half, 2};
  std::vector<uint32_t> axes = {0, 2, 1};
  if (shape.size() == 2) {
    split.push_back(shape[1]);
    axes.push_back(3);
  }
  return view.reshape(Shape(split)).permute(axes).reshape(shape);
}

View fused(const std::array<View, 3>& three, const Config& config) {
  std::vector<View> groups;
  for (const View& one : three) {
    Sizes sizes = sizes_of(one);
    if (sizes.empty() || sizes.size() > 2 || sizes[0] % config.keys != 0)
      throw unfaithful_error({}, "shape {} is not of {} groups of heads",
                             to_string(one.shape()), config.keys);
    sizes[0] /= config.keys;
    sizes.insert(sizes.begin(), config.keys);
    groups.push_back(one.reshape(Shape(sizes)));
  }
  const View all = View::concat(groups, 1);
  Sizes sizes = sizes_of(all);
  sizes[1] *= sizes[0];
  sizes.erase(sizes.begin());
  return all.reshape(Shape(sizes));
}

std::array<View, 3> unfused(const View& view, const Config& config) {
  const Shape& shape = view.shape();
  const uint64_t each = config.queries / config.keys;
  if (shape.empty() || shape.size() > 2 ||
      shape[0] % (config.keys * (each + 2)) != 0)
    throw unfaithful_error({}, "shape {} is not of {} and {} heads",
                           to_string(shape), config.queries, config.keys);
  const uint64_t size = shape[0] / config.keys / (each + 2);
  Sizes split = sizes_of(view);
  split[0] = (each + 2) * size;
  split.insert(split.begin(), config.keys);
  const View groups = view.reshape(Shape(split));
  const auto part = [&](uint64_t begin, uint64_t count) {
    Shape rows = shape;
    rows[0] = config.keys * count * size;
    return groups.slice(1, begin * size, count * size).reshape(rows);
  };
  return {part(0, each), part(each, 1), part(each + 1, 1)};
}

View expert(const View& all, uint64_t index) {
  Sizes one = sizes_of(all);
  if (one.size() < 2)
    throw unfaithful_error({}, "shape {} is not of several experts",
                           to_string(all.shape()));
  one.erase(one.begin());
  return all.slice(0, index, 1).reshape(Shape(one));
}

View half(const View& both, uint64_t index) {
  const Shape& shape = both.shape();
  if (shape.size() != 3 || shape[1] % 2 != 0)
    throw unfaithful_error({}, "shape {} is not of experts' gates and ups",
                           to_string(shape));
  return both.slice(1, index * (shape[1] / 2), shape[1] / 2);
}

View transposed(const View& view) {
  if (view.shape().size() != 3)
    throw unfaithful_error({}, "shape {} is not of experts' weights",
                           to_string(view.shape()));
  return view.permute({0, 2, 1});
}

}  // namespace ckpt::runs::titan
