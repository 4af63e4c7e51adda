// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer/evidence.h"

#include <algorithm>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "formats/runs/find/pattern.h"
#include "formats/runs/optimizer/naming.h"
#include "lib/text/words.h"

namespace ckpt::runs {
namespace {

// States with their own shape, whatever the parameter's.
constexpr std::string_view kOwnShape =
    "row col projector qmap1 qmap2 qmap max1 max2 new_max1 new_max2 unorm_vec";

// Adafactor's second moment: sums over rows, and over columns. torch keeps the
// summed dimension, with size 1; transformers does not.
bool is_rows(std::string_view state) {
  return state == "row_var" || state == "exp_avg_sq_row";
}
bool is_columns(std::string_view state) {
  return state == "col_var" || state == "exp_avg_sq_col";
}

Wanted from_sums(const Tensor& rows, const Tensor& columns) {
  const Shape &r = rows.shape, &c = columns.shape;
  if (r.empty() || c.empty() || r.size() != c.size()) return std::nullopt;
  const size_t last = r.size() - 1;
  const bool kept = rows.state == "row_var";
  if (kept && (last == 0 || r[last] != 1 || c[last - 1] != 1))
    return std::nullopt;
  for (size_t d = 0; d + 1 < (kept ? last : r.size()); ++d)
    if (r[d] != c[d]) return std::nullopt;
  std::vector<uint64_t> sizes(r.begin(), r.end());
  if (kept)
    sizes[last] = c[last];
  else
    sizes.push_back(c[last]);
  return Shape(sizes);
}

// AdEMAMix (bitsandbytes) has two first moments in one tensor, the second
// moment beside them in the parameter's shape.
bool is_pair(const Tensor& tensor, const Shape& whole) {
  const Shape& pair = tensor.shape;
  return bare_state(tensor.state) == "state1" &&
         pair.size() == whole.size() + 1 && pair[0] == 2 &&
         std::equal(whole.begin(), whole.end(), pair.begin() + 1);
}

// bitsandbytes has a maximum for each block of an 8-bit state.
bool is_maxima(std::string_view state) {
  return state == "absmax1" || state == "absmax2" || state == "absmax";
}

bool fit_blocks(const Tensor& maxima, const Shape& whole) {
  const auto count = element_count(whole);
  const Shape& shape = maxima.shape;
  const bool pair = shape.size() == 2 && shape[0] == 2;
  if (!count || (shape.size() != 1 && !pair)) return false;
  for (const uint64_t block : {256, 2048, 4096})
    if (shape[shape.size() - 1] == *count / block + (*count % block != 0))
      return true;
  return false;
}

// GaLore and APOLLO keep the moments of a gradient that a matrix of `rank` rows
// or columns made smaller (galore_projector.py, random_projector.py):
//
//   gradient [a, b]   right: matrix [r, b], moments [a, r]
//                     left:  matrix [a, r], moments [r, b]
//                     full:  matrices [a, r] and [r, b], moments [r, r]
constexpr std::string_view kProjector = "projector.";
constexpr std::string_view kMatrix = "projector.ortho_matrix";

using Matrices = std::vector<const Tensor*>;

Wanted from_projection(const Matrices& matrices, const Wanted& moments,
                       const std::optional<uint64_t>& rank) {
  const bool flat = std::ranges::all_of(
      matrices, [](const Tensor* one) { return one->shape.size() == 2; });
  if (!flat || !moments || moments->size() != 2) return std::nullopt;
  const Shape &m = *moments, &p = matrices[0]->shape;
  if (matrices.size() == 2) {
    const Shape& q = matrices[1]->shape;
    if (m[0] != p[1] || m[1] != q[0]) return std::nullopt;
    return Shape({p[0], q[1]});
  }
  const bool right = p[0] == m[1], left = p[1] == m[0];
  if (matrices.size() != 1 || !(right || left)) return std::nullopt;
  if (right && left && p[0] != p[1]) {  // only the rank tells
    if (rank == p[0]) return Shape({m[0], p[1]});
    if (rank == p[1]) return Shape({p[0], m[1]});
    return std::nullopt;
  }
  return right ? Shape({m[0], p[1]}) : Shape({p[0], m[1]});
}

struct Indirect {
  const Tensor* rows = nullptr;
  const Tensor* columns = nullptr;
  std::vector<const Tensor*> maxima;
  const Tensor* first = nullptr;   // bitsandbytes' state1 …
  const Tensor* second = nullptr;  // … and state2
  Matrices matrices;
};

std::map<uint64_t, uint64_t> ranks_in(const Groups& groups) {
  std::map<uint64_t, uint64_t> ranks;
  for (const Group& group : groups)
    for (const uint64_t number : group.numbers)
      if (group.rank) ranks.emplace(number, *group.rank);
  return ranks;
}

}  // namespace

std::set<std::string_view> projected(std::span<const Tensor> tensors) {
  std::set<std::string_view> params;
  for (const Tensor& tensor : tensors)
    if (bare_state(tensor.state).starts_with(kProjector))
      params.insert(tensor.param);
  return params;
}

bool tells_shape(const Tensor& tensor) {
  const std::string_view state = bare_state(tensor.state);
  return !tensor.shape.empty() && state != "step" && !is_rows(state) &&
         !is_columns(state) && !is_maxima(state) &&
         !state.starts_with(kProjector) && !text::has_word(kOwnShape, state);
}

Evidence evidence_of(const Catalog& catalog, const Range& range,
                     const Groups& groups) {
  Evidence evidence;
  std::map<uint64_t, Indirect> indirect;
  const std::map<uint64_t, uint64_t> ranks = ranks_in(groups);
  const auto take = [&](uint64_t number, const Wanted& told) {
    Wanted& shape = evidence.shapes[number];
    if (!told || (shape && *shape != *told)) evidence.odd = number;
    if (told) shape = told;
  };
  for (size_t t = range.begin; t < range.end; ++t) {
    const Tensor& tensor = catalog.tensors[t];
    const auto number = whole_number(tensor.param);
    if (!number) continue;
    evidence.shapes.try_emplace(*number);
    const std::string_view state = bare_state(tensor.state);
    if (is_rows(state)) indirect[*number].rows = &tensor;
    if (is_columns(state)) indirect[*number].columns = &tensor;
    if (state.starts_with(kMatrix))
      indirect[*number].matrices.push_back(&tensor);
    if (is_maxima(state)) indirect[*number].maxima.push_back(&tensor);
    if (state == "state1")
      indirect[*number].first = &tensor;
    else if (tells_shape(tensor))
      take(*number, tensor.shape);
    if (state == "state2") indirect[*number].second = &tensor;
  }
  for (const auto& [number, told] : indirect) {
    if ((told.rows == nullptr) != (told.columns == nullptr))
      evidence.odd = number;
    else if (told.rows != nullptr)
      take(number, from_sums(*told.rows, *told.columns));
    if (told.first != nullptr &&
        (told.second == nullptr || !is_pair(*told.first, told.second->shape)))
      take(number, told.first->shape);
    const Wanted& whole = evidence.shapes[number];
    for (const Tensor* maxima : told.maxima)
      if (!whole || !fit_blocks(*maxima, *whole)) evidence.odd = number;
    if (told.matrices.empty()) continue;
    const auto rank = ranks.find(number);
    const Wanted shape = from_projection(
        told.matrices, whole,
        rank == ranks.end() ? std::nullopt : std::optional(rank->second));
    if (!shape) evidence.odd = number;
    evidence.shapes[number] = shape;
  }
  return evidence;
}

}  // namespace ckpt::runs
