// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources/low_rank.h"

#include <algorithm>
#include <cmath>

#include "ckpt/error.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/numbers/sums.h"

namespace ckpt::reshard {
namespace {

// Elements of a tile and of each factor's part of it: at most 1 MiB of f32.
constexpr uint64_t kTile = uint64_t{1} << 17;
constexpr uint64_t kFactor = uint64_t{1} << 18;

uint64_t at_most(uint64_t count, uint64_t room) {
  return std::max<uint64_t>(1, std::min(count, room));
}

// Turns what is stored as [b][a] into [a][b].
void transpose(const float* in, uint64_t a, uint64_t b, float* out) {
  for (uint64_t j = 0; j < b; ++j)
    for (uint64_t i = 0; i < a; ++i) out[i * b + j] = in[j * a + i];
}

}  // namespace

struct LowRank::Tile {
  uint64_t row = 0, rows = 0, column = 0, columns = 0;
  std::vector<float> left, right, turned, sum, base, factors;
};

LowRank::LowRank(StoredMatrix base, LowRankTerm term, const std::string& name)
    : name_(name), base_(std::move(base)), term_(std::move(term)) {
  const StoredMatrix& left = term_.left;
  const bool turned = term_.transposed;
  rank_ = turned ? left.rows() : left.columns();
  const uint64_t rows = turned ? left.columns() : left.rows();
  uint64_t inner = 1, columns = 1;
  if (term_.right) {
    inner = turned ? term_.right->columns() : term_.right->rows();
    columns = turned ? term_.right->rows() : term_.right->columns();
  }
  if (rows != base_.rows() || columns != base_.columns() || inner != rank_)
    throw unfaithful_error(
        {{}, name},
        "an adapter's product is {} x {} of ranks {} and {}, the "
        "weight is {} x {}",
        rows, columns, rank_, inner, base_.rows(), base_.columns());
  if (rank_ == 0 || rank_ > kFactor)
    throw unfaithful_error({{}, name}, "an adapter of rank {}", rank_);
  if (!term_.magnitude) return;
  const uint64_t lengths = turned ? base_.columns() : base_.rows();
  if (term_.magnitude->rows() * term_.magnitude->columns() != lengths)
    throw unfaithful_error({{}, name}, "{} magnitudes (DoRA) of {} vectors",
                           term_.magnitude->rows(), lengths);
  lengths_ = std::vector<std::atomic<float>>(lengths);
  for (std::atomic<float>& length : lengths_) length = -1;
}

LowRank::~LowRank() = default;

void LowRank::read(uint64_t offset, std::span<std::byte> buffer,
                   const ReadFile& read) const {
  base_.each_part(
      offset, buffer,
      [&](uint64_t row, uint64_t rows, uint64_t column, uint64_t columns,
          std::byte* out) { make(row, rows, column, columns, out, read); });
}

void LowRank::make(uint64_t row, uint64_t rows, uint64_t column,
                   uint64_t columns, std::byte* out,
                   const ReadFile& read) const {
  const uint64_t size = element_size(base_.dtype());
  Tile t;
  for (uint64_t c = 0; c < columns;) {
    const uint64_t wide =
        at_most(columns - c, std::min(kFactor / rank_, kTile));
    for (uint64_t r = 0; r < rows;) {
      const uint64_t high =
          at_most(rows - r, std::min(kFactor / rank_, kTile / wide));
      t.row = row + r, t.rows = high, t.column = column + c, t.columns = wide;
      if (r == 0) load_right(t, read);
      sum(t, read);
      if (term_.magnitude) bring_to_length(t, read);
      if (!term_.allow_nonfinite)
        check_sums(t.sum, t.base,
                   {name_, base_.dtype(), t.row, t.column, t.columns});
      for (uint64_t i = 0; i < high; ++i)
        narrow_sum(base_.dtype(), t.sum.data() + i * wide,
                   out + ((r + i) * columns + c) * size, wide);
      r += high;
    }
    c += wide;
  }
}

void LowRank::load_left(Tile& t, const ReadFile& read) const {
  t.left.resize(t.rows * rank_);
  if (!term_.transposed)
    return term_.left.load(t.row, t.rows, 0, rank_, t.left.data(), read);
  t.turned.resize(t.rows * rank_);
  term_.left.load(0, rank_, t.row, t.rows, t.turned.data(), read);
  transpose(t.turned.data(), t.rows, rank_, t.left.data());
}

void LowRank::load_right(Tile& t, const ReadFile& read) const {
  t.right.assign(t.columns * rank_, 1);
  if (!term_.right) return;
  if (!term_.transposed)
    return term_.right->load(0, rank_, t.column, t.columns, t.right.data(),
                             read);
  t.turned.resize(t.columns * rank_);
  term_.right->load(t.column, t.columns, 0, rank_, t.turned.data(), read);
  transpose(t.turned.data(), rank_, t.columns, t.right.data());
}

void LowRank::sum(Tile& t, const ReadFile& read) const {
  const uint64_t count = t.rows * t.columns;
  t.sum.resize(count);
  t.base.resize(count);
  load_left(t, read);
  multiply(t.left.data(), t.right.data(), t.rows, rank_, t.columns,
           t.sum.data());
  scale_all(t.sum.data(), count, term_.scale);
  if (term_.rounded && base_.dtype() != DType::f32) {
    std::vector<std::byte> rounded(count * element_size(base_.dtype()));
    narrow_sum(base_.dtype(), t.sum.data(), rounded.data(), count);
    best_cast_kernel().cast(base_.dtype(), DType::f32, rounded.data(),
                            reinterpret_cast<std::byte*>(t.sum.data()), count);
  }
  base_.load(t.row, t.rows, t.column, t.columns, t.base.data(), read);
  add_all(t.sum.data(), t.base.data(), count);
}

void LowRank::bring_to_length(Tile& t, const ReadFile& read) const {
  const bool turned = term_.transposed;
  const uint64_t first = turned ? t.column : t.row;
  const uint64_t count = turned ? t.columns : t.rows;
  if (turned)
    measure_columns(read);
  else
    measure_rows(t.row, t.rows, read);
  t.factors.resize(count);
  term_.magnitude->load(first, count, 0, 1, t.factors.data(), read);
  for (uint64_t i = 0; i < count; ++i) t.factors[i] /= lengths_[first + i];
  for (uint64_t i = 0; i < t.rows; ++i)
    if (turned)
      scale_each(t.sum.data() + i * t.columns, t.factors.data(), t.columns);
    else
      scale_all(t.sum.data() + i * t.columns, t.columns, t.factors[i]);
}

// A row is measured once, however many parts of it are requested. Two threads
// that measure it at the same time get the same number.
void LowRank::measure_rows(uint64_t row, uint64_t rows,
                           const ReadFile& read) const {
  Tile t;
  const uint64_t width = base_.columns();
  for (uint64_t r = row; r < row + rows; ++r) {
    if (lengths_[r] >= 0) continue;
    double squares = 0;
    for (uint64_t c = 0; c < width; c += t.columns) {
      t.row = r, t.rows = 1, t.column = c;
      t.columns = at_most(width - c, std::min(kFactor / rank_, kTile));
      load_right(t, read);
      sum(t, read);
      for (const float x : t.sum) squares += double{x} * x;
    }
    lengths_[r] = static_cast<float>(std::sqrt(squares));
  }
}

void LowRank::measure_columns(const ReadFile& read) const {
  const std::lock_guard lock(measuring_);
  if (measured_) return;
  Tile t;
  std::vector<double> squares(base_.columns());
  for (uint64_t c = 0; c < base_.columns(); c += t.columns) {
    t.column = c;
    t.columns = at_most(base_.columns() - c, std::min(kFactor / rank_, kTile));
    load_right(t, read);
    for (uint64_t r = 0; r < base_.rows(); r += t.rows) {
      t.row = r;
      t.rows = at_most(base_.rows() - r,
                       std::min(kFactor / rank_, kTile / t.columns));
      sum(t, read);
      for (uint64_t i = 0; i < t.sum.size(); ++i)
        squares[c + i % t.columns] += double{t.sum[i]} * t.sum[i];
    }
  }
  for (uint64_t i = 0; i < squares.size(); ++i)
    lengths_[i] = static_cast<float>(std::sqrt(squares[i]));
  measured_ = true;
}

}  // namespace ckpt::reshard
