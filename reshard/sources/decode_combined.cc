// SPDX-License-Identifier: Apache-2.0
// What several tensors amount to together, element by element
// (lib/decoding.h, kCombined): sums and means of what ranks have, merged
// models.
//
// Each step is a pass of its own over a few thousand elements, in the order of
// the terms: the bits are the same whoever reads which part, and whether or not
// a compiler would fuse a product with a sum.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ckpt/error.h"
#include "lib/trace.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/numbers/sums.h"
#include "reshard/sources/combine.h"
#include "reshard/sources/decode.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kCombinedAtOnce = 64 << 10;  // elements of a line
constexpr uint64_t kLeastAtOnce = 2 << 10;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// The least number that rounds to an infinity in that dtype.
double limit_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 65520;
    case DType::bf16:
      return 0x1.FFp127;
    case DType::f32:
      return 0x1.FFFFFFp127;
    default:
      return kNoLimit;
  }
}

// What a narrower dtype rounds as it would round x itself: an inexact f32 has
// an odd last bit, so that it is never halfway between two of the narrower.
float odd_float(double x) {
  const auto near = static_cast<float>(x);
  if (static_cast<double>(near) == x || !std::isfinite(x)) return near;
  auto bits = std::bit_cast<uint32_t>(near);
  if (std::fabs(static_cast<double>(near)) > std::fabs(x)) --bits;
  return std::bit_cast<float>(bits | 1);
}

using reshard::add_all;
using reshard::scale_all;
[[gnu::noinline]] void scale_all(double* x, uint64_t count, double by) {
  for (uint64_t i = 0; i < count; ++i) x[i] *= by;
}
[[gnu::noinline]] void add_all(double* x, const double* y, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) x[i] += y[i];
}
template <class Number>
[[gnu::noinline]] void take_all(Number* x, const Number* y, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) x[i] -= y[i];
}
template <class Number>
[[gnu::noinline]] void divide_all(Number* x, uint64_t count, Number by) {
  for (uint64_t i = 0; i < count; ++i) x[i] /= by;
}

template <class Number>
void add_weighted(std::vector<Number>& sums, std::vector<Number>& term,
                  double weight) {
  if (weight != 1)
    scale_all(term.data(), term.size(), static_cast<Number>(weight));
  add_all(sums.data(), term.data(), sums.size());
}

template <class Number>
void keep_some(const KeptDeltas& kept, uint64_t first,
               std::vector<Number>& deltas) {
  const auto factor = static_cast<Number>(kept.factor);
  for (uint64_t i = 0; i < deltas.size(); ++i)
    deltas[i] = is_kept(kept, first + i, static_cast<float>(deltas[i]))
                    ? deltas[i] * factor
                    : Number{0};
}

// Of `count` weighted deltas of each element the sum of those that have the
// sign of all of them together, which go into `sums`.
template <class Number>
void add_agreeing(const Combination& all, const std::vector<Number>& deltas,
                  std::vector<Number>& sums) {
  const size_t size = sums.size();
  const size_t count = deltas.size() / size;
  for (size_t i = 0; i < size; ++i) {
    Number sum = 0;
    for (size_t t = 0; t < count; ++t) sum += deltas[t * size + i];
    Number agreed = 0, weights = 0;
    for (size_t t = 0; t < count; ++t) {
      const Number delta = deltas[t * size + i];
      const bool same = sum >= 0 ? delta > 0 : delta < 0;
      if (!same) continue;
      agreed += delta;
      weights += static_cast<Number>(all.terms[t + 1].weight);
    }
    sums[i] = all.normal && weights != 0 ? agreed / weights : agreed;
  }
}

}  // namespace

void DecodeReader::read_term(const Decoding& made, const Tensor& tensor,
                             const Tile& tile, std::vector<float>& out) {
  floats(made, tensor, tile, out);
}

void DecodeReader::read_term(const Decoding& made, const Tensor& tensor,
                             const Tile& tile, std::vector<double>& out) {
  const uint64_t count = tile.rows * tile.columns;
  out.resize(count);
  if (tensor.dtype == DType::f64)
    return box(made, tensor, tile, reinterpret_cast<std::byte*>(out.data()));
  floats(made, tensor, tile, line_);
  std::ranges::copy(line_, out.begin());
}

// Throws unfaithful_error for a number of `limit` or more, and, where
// sums have to be finite, for one that is not, unless all terms have it.
template <class Number>
void DecodeReader::check_sums(const Decoding& made, const Tile& tile,
                              const std::vector<Number>& sums, double limit) {
  const bool finite = made.combined->finite;
  const auto is_odd = [&](Number x) {
    const double size = std::fabs(static_cast<double>(x));
    return std::isfinite(x) ? size >= limit : finite;
  };
  if (std::ranges::none_of(sums, is_odd)) return;
  const uint64_t first =
      (tile.batch * made.rows + tile.row) * made.columns + tile.column;
  std::vector<bool> odd(sums.size());
  std::vector<Number> before, term;
  for (size_t i = 0; i < sums.size(); ++i) odd[i] = is_odd(sums[i]);
  for (size_t i = 0; i < sums.size(); ++i)
    if (odd[i] && std::isfinite(sums[i]))
      throw unfaithful_error({{}, made.name},
                             "[{}] of all together is {:g}, which {} can't "
                             "hold",
                             first + i, sums[i], ckpt::name(made.dtype));
  for (const Term& one : made.combined->terms) {
    read_term(made, one.tensor, tile, term);
    for (size_t i = 0; i < sums.size(); ++i)
      if (odd[i] && (std::isfinite(term[i]) ||
                     (!before.empty() && before[i] != term[i] &&
                      !(std::isnan(before[i]) && std::isnan(term[i])))))
        throw unfaithful_error({{}, made.name}, "[{}] of all together is {:g}",
                               first + i, sums[i])
            .with_hint(
                "`ckpt inspect SRC --stats` says which source has values that "
                "are not finite; --allow-nonfinite writes them");
    before = term;
  }
}

template <class Number>
void DecodeReader::combine(const Decoding& made, const Tile& tile,
                           Lines<Number>& lines) {
  const Combination& all = *made.combined;
  const uint64_t count = tile.rows * tile.columns;
  const uint64_t first =
      (tile.batch * made.rows + tile.row) * made.columns + tile.column;
  lines.sums.assign(count, 0);
  if (all.how == Combination::How::kSum) {
    for (const Term& term : all.terms) {
      read_term(made, term.tensor, tile, lines.term);
      add_weighted(lines.sums, lines.term, term.weight);
    }
    if (all.divisor != 1)
      divide_all(lines.sums.data(), count, static_cast<Number>(all.divisor));
    return check_sums(made, tile, lines.sums, limit_of(made.dtype));
  }
  read_term(made, all.terms.front().tensor, tile, lines.base);
  lines.deltas.clear();
  for (size_t t = 1; t < all.terms.size(); ++t) {
    const Term& term = all.terms[t];
    read_term(made, term.tensor, tile, lines.term);
    if (!term.is_delta) take_all(lines.term.data(), lines.base.data(), count);
    // Neither a delta that is left out nor one of no sign would show.
    if (term.kept || all.agreeing) check_sums(made, tile, lines.term, kNoLimit);
    if (term.kept) keep_some(*term.kept, first, lines.term);
    if (!all.agreeing) {
      add_weighted(lines.sums, lines.term, term.weight);
      continue;
    }
    if (term.weight != 1)
      scale_all(lines.term.data(), count, static_cast<Number>(term.weight));
    lines.deltas.insert(lines.deltas.end(), lines.term.begin(),
                        lines.term.end());
  }
  if (all.agreeing) add_agreeing(all, lines.deltas, lines.sums);
  if (all.divisor != 1)
    divide_all(lines.sums.data(), count, static_cast<Number>(all.divisor));
  if (all.lambda != 1)
    scale_all(lines.sums.data(), count, static_cast<Number>(all.lambda));
  add_all(lines.sums.data(), lines.base.data(), count);
  check_sums(made, tile, lines.sums, limit_of(made.dtype));
}

void DecodeReader::put_combined(const Decoding& made, const Tile& tile,
                                std::byte* out) {
  const uint64_t count = tile.rows * tile.columns;
  const trace::Span span("combine", count * element_size(made.dtype));
  if (!made.combined->exact) {
    combine(made, tile, singles_);
    return narrow_sum(made.dtype, singles_.sums.data(), out, count);
  }
  combine(made, tile, doubles_);
  if (made.dtype == DType::f64) {
    std::memcpy(out, doubles_.sums.data(), count * sizeof(double));
    return;
  }
  line_.resize(count);
  std::ranges::transform(doubles_.sums, line_.begin(), [&made](double sum) {
    return made.dtype == DType::f32 ? static_cast<float>(sum) : odd_float(sum);
  });
  narrow_sum(made.dtype, line_.data(), out, count);
}

void DecodeReader::each_tile(const Decoding& made, uint64_t first,
                             uint64_t count, uint64_t most,
                             const std::function<void(const Tile&)>& use) {
  const uint64_t matrix = made.rows * made.columns;
  while (count > 0) {
    const uint64_t column = first % made.columns;
    Tile tile{first / matrix, first % matrix / made.columns, 1, column,
              std::min({count, made.columns - column, most})};
    if (tile.columns == made.columns)
      tile.rows = std::clamp<uint64_t>(
          most / made.columns, 1,
          std::min(count / made.columns, made.rows - tile.row));
    use(tile);
    first += tile.rows * tile.columns;
    count -= tile.rows * tile.columns;
  }
}

void DecodeReader::read_combined(const Decoding& made, uint64_t first,
                                 uint64_t count, std::byte* out) {
  const uint64_t element = element_size(made.dtype);
  // Deltas of all terms are held at once.
  const uint64_t held =
      made.combined->agreeing ? made.combined->terms.size() : 1;
  const uint64_t most = std::max(kCombinedAtOnce / held, kLeastAtOnce);
  each_tile(made, first, count, most, [&](const Tile& tile) {
    put_combined(made, tile, out);
    out += tile.rows * tile.columns * element;
  });
}

void DecodeReader::each_line(const Decoding& made, const UseLines& use) {
  const std::vector<Term>& terms = made.combined->terms;
  std::vector<std::vector<float>> lines(terms.size());
  const uint64_t most =
      std::max(4 * kCombinedAtOnce / terms.size(), kLeastAtOnce);
  each_tile(
      made, 0, made.batch * made.rows * made.columns, most,
      [&](const Tile& tile) {
        for (size_t t = 0; t < terms.size(); ++t)
          read_term(made, terms[t].tensor, tile, lines[t]);
        use((tile.batch * made.rows + tile.row) * made.columns + tile.column,
            lines);
      });
}

}  // namespace ckpt::reshard
