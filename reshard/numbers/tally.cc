// SPDX-License-Identifier: Apache-2.0
#include "reshard/numbers/tally.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "reshard/numbers/values.h"

namespace ckpt::reshard {
namespace {

constexpr double kMostFinite = std::numeric_limits<double>::max();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr uint32_t kPage = 256;
constexpr uint64_t kNode = 64;  // bytes of a map's node beside a page

// True if each value of the type has a counter.
bool is_narrow(DType dtype) {
  return element_size(dtype) <= 2 && doubles_of(dtype) == 1;
}

bool is_f32(DType dtype) { return dtype == DType::f32 || dtype == DType::c64; }

size_t magnitude_slot(int exponent) {
  constexpr int kMost = 2 * Stats::kMagnitudes - 1;
  return static_cast<size_t>(
      std::clamp(exponent - Stats::kLeastExponent, 0, kMost) / 2);
}

// The counter of a finite double: no rounding, so that all of a binade stays
// together.
uint32_t counter_of(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto sign = static_cast<uint32_t>(bits >> 63) << 15;
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023 + 127;
  if (exponent <= 0) return sign;
  if (exponent >= 255) return sign | 0x7f7f;
  return sign | static_cast<uint32_t>(exponent) << 7 |
         static_cast<uint32_t>(bits >> 45 & 0x7f);
}

// The middle of what a counter counts.
double middle_of(uint32_t counter) {
  if ((counter & 0x7fff) == 0) return 0;
  return static_cast<double>(std::bit_cast<float>(counter << 16 | 0x8000));
}

// The doubles that the counters of a page stand for.
void page_values(DType dtype, uint32_t page, double* values) {
  if (!is_narrow(dtype)) {
    for (uint32_t i = 0; i < kPage; ++i)
      values[i] = middle_of(page * kPage + i);
    return;
  }
  uint8_t small[kPage];
  uint16_t wide[kPage];
  for (uint32_t i = 0; i < kPage; ++i) {
    small[i] = static_cast<uint8_t>(i);
    wide[i] = static_cast<uint16_t>(page * kPage + i);
  }
  const void* const stored = element_size(dtype) == 1
                                 ? static_cast<const void*>(small)
                                 : static_cast<const void*>(wide);
  to_doubles(dtype, static_cast<const std::byte*>(stored), kPage, values);
}

// An element is zero if the units that it is made of are, but for these bits.
struct Zero {
  uint32_t unit = 1;   // bytes
  uint32_t units = 1;  // of an element
  uint64_t mask = ~uint64_t{0};
  bool exists = true;
};

Zero zero_of(DType dtype) {
  Zero zero{.unit = static_cast<uint32_t>(element_size(dtype))};
  switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      zero.mask = (uint64_t{1} << (8 * zero.unit - 1)) - 1;
      break;
    case DType::c128:
    case DType::c64:
    case DType::c32:
      zero.unit /= 2;
      zero.units = 2;
      zero.mask = (uint64_t{1} << (8 * zero.unit - 1)) - 1;
      break;
    case DType::f8_e8m0:
      zero.exists = false;
      break;
    default:  // the other sign of zero is NaN, or there is none
      break;
  }
  return zero;
}

template <class Unit>
bool has_some(const std::byte* in, uint64_t units, uint64_t mask) {
  constexpr uint64_t kTogether = 64;
  const auto keep = static_cast<Unit>(mask);
  for (uint64_t begin = 0; begin < units; begin += kTogether) {
    const uint64_t end = std::min(units, begin + kTogether);
    Unit any = 0;
    for (uint64_t i = begin; i < end; ++i) {
      Unit unit;
      std::memcpy(&unit, in + i * sizeof unit, sizeof unit);
      any = static_cast<Unit>(any | (unit & keep));
    }
    if (any != 0) return true;
  }
  return false;
}

// True if one of the elements is not zero.
bool has_some(const Zero& zero, const std::byte* in, uint64_t count) {
  if (!zero.exists) return count != 0;
  const uint64_t units = count * zero.units;
  switch (zero.unit) {
    case 1:
      return has_some<uint8_t>(in, units, zero.mask);
    case 2:
      return has_some<uint16_t>(in, units, zero.mask);
    case 4:
      return has_some<uint32_t>(in, units, zero.mask);
    default:
      return has_some<uint64_t>(in, units, zero.mask);
  }
}

constexpr uint64_t words_of(uint64_t bits) { return (bits + 63) / 64; }

uint64_t count_unset(const std::vector<uint64_t>& words, uint64_t bits) {
  uint64_t set = 0;
  for (const uint64_t word : words)
    set += static_cast<uint64_t>(std::popcount(word));
  return bits - set;
}

void join(const std::vector<uint64_t>& from, std::vector<uint64_t>& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] |= from[i];
}

}  // namespace

Lines::Lines(const Shape& shape) {
  if (shape.size() != 2 || shape[0] > kMost || shape[1] > kMost) return;
  if (shape[0] == 0 || shape[1] == 0) return;
  rows = shape[0], columns = shape[1];
  some_in_row.resize(words_of(rows));
  some_in_column.resize(words_of(columns));
}

uint64_t Tally::memory_of(const Shape& shape) {
  if (shape.size() != 2) return kMemory;
  return kMemory + words_of(std::min(shape[0], Lines::kMost)) * 8 +
         words_of(std::min(shape[1], Lines::kMost)) * 8;
}

void Tally::begin(DType dtype, const Shape& shape) {
  dtype_ = dtype;
  lines_ = Lines(shape);
  zero_columns_ = lines_.columns;
}

void Tally::add(uint64_t first, const std::byte* in, uint64_t count) {
  if (is_narrow(dtype_))
    count_narrow(in, count);
  else if (is_f32(dtype_))
    count_floats(in, count * doubles_of(dtype_));
  else
    count_wide(in, count);
  pending_ += count;
  if (lines_.rows != 0) look_at_lines(first, in, count);
}

void Tally::count_narrow(const std::byte* in, uint64_t count) {
  uint32_t* const counts = counts_.data();
  if (element_size(dtype_) == 1) {
    // Of few values the next is often the same: four counters for each, so that
    // no addition waits for the last one.
    for (uint64_t i = 0; i < count; ++i)
      ++counts[(i & 3) * kPage + std::to_integer<uint32_t>(in[i])];
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    uint16_t value;
    std::memcpy(&value, in + i * sizeof value, sizeof value);
    ++counts[value];
  }
}

namespace {

// All but what the counters say. Elements are distributed over independent
// sums in turn, so that one need not wait for the previous one.
template <class Float>
void add_range(const Float* values, uint64_t count, Stats& stats) {
  constexpr size_t kLanes = 8;
  constexpr auto kMost = static_cast<double>(std::numeric_limits<Float>::max());
  double min[kLanes], max[kLanes];
  uint64_t nans[kLanes] = {}, infs[kLanes] = {}, zeros[kLanes] = {};
  std::fill_n(min, kLanes, stats.min);
  std::fill_n(max, kLanes, stats.max);
  const auto add = [&](double value, size_t lane) {
    const bool finite = std::abs(value) <= kMost;
    const double low = finite ? value : kInf;
    const double high = finite ? value : -kInf;
    min[lane] = low < min[lane] ? low : min[lane];
    max[lane] = high > max[lane] ? high : max[lane];
    nans[lane] += value != value;
    infs[lane] += (value == value) & !finite;
    zeros[lane] += value == 0;
  };
  for (uint64_t i = 0; i < count; ++i)
    add(static_cast<double>(values[i]), i % kLanes);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    stats.min = std::min(stats.min, min[lane]);
    stats.max = std::max(stats.max, max[lane]);
    stats.nans += nans[lane];
    stats.infs += infs[lane];
    stats.zeros += zeros[lane];
  }
  stats.count += count;
}

}  // namespace

void Tally::count_floats(const std::byte* in, uint64_t count) {
  // Sums of squared mantissas, of 48 bits each, can't overflow before they are
  // flushed.
  constexpr uint64_t kBlock = 4096;
  static_assert(kBlock <= uint64_t{1} << 15);
  uint32_t* const counts = counts_.data();
  float values[kBlock];
  for (uint64_t begin = 0; begin < count; begin += kBlock) {
    const uint64_t n = std::min(kBlock, count - begin);
    std::memcpy(values, in + begin * sizeof(float), n * sizeof(float));
    for (uint64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(values[i]);
      const uint32_t exponent = bits >> 23 & 0xff;
      const int64_t size =
          (bits & 0x7fffff) | static_cast<uint32_t>(exponent != 0) << 23;
      Mantissas& at = mantissas_[i & 1][exponent];
      at.sum += bits >> 31 ? -size : size;
      at.squares += size * size;
      ++counts[bits >> 16];
    }
    add_range(values, n, stats_);
    flush_floats();
  }
}

void Tally::flush_floats() {
  for (int exponent = 0; exponent < 256; ++exponent) {
    Mantissas sum;
    for (auto& turn : mantissas_) {
      Mantissas& at = turn[static_cast<size_t>(exponent)];
      sum.sum += at.sum;
      sum.squares += at.squares;
      at = {};
    }
    if (sum.squares == 0 || exponent == 255) continue;
    const int least = std::max(exponent, 1) - 150;
    sum_.add(sum.sum, least);
    squares_.add(sum.squares, 2 * least);
  }
}

void Tally::count_wide(const std::byte* in, uint64_t count) {
  constexpr uint64_t kBlock = 2048;
  double values[2 * kBlock];
  const uint64_t size = element_size(dtype_);
  for (uint64_t begin = 0; begin < count; begin += kBlock) {
    const uint64_t n = std::min(kBlock, count - begin);
    to_doubles(dtype_, in + begin * size, n, values);
    const std::span<const double> all(values, n * doubles_of(dtype_));
    for (const double value : all) {
      if (!(std::abs(value) <= kMostFinite)) continue;
      ++counts_[counter_of(value)];
      sum_.add(value);
      if (const double square = value * value; square <= kMostFinite)
        squares_.add(square);
      else
        stats_.sum_of_squares = kInf;
    }
    add_range(all.data(), all.size(), stats_);
  }
}

void Tally::look_at_lines(uint64_t first, const std::byte* in, uint64_t count) {
  const Zero zero = zero_of(dtype_);
  const uint64_t size = element_size(dtype_);
  uint64_t row = first / lines_.columns, column = first % lines_.columns;
  while (count != 0) {
    const uint64_t n = std::min(lines_.columns - column, count);
    uint64_t& in_row = lines_.some_in_row[row / 64];
    if (!(in_row >> (row % 64) & 1) && has_some(zero, in, n))
      in_row |= uint64_t{1} << (row % 64);
    // Columns of weights have something in the first rows: what is left to look
    // for is nothing, or little.
    for (uint64_t c = column; zero_columns_ != 0 && c < column + n;) {
      uint64_t& word = lines_.some_in_column[c / 64];
      const uint64_t end = std::min((c / 64 + 1) * 64, column + n);
      if (word == ~uint64_t{0}) {
        c = end;
        continue;
      }
      for (; c < end; ++c) {
        if (word >> (c % 64) & 1) continue;
        if (!has_some(zero, in + (c - column) * size, 1)) continue;
        word |= uint64_t{1} << (c % 64);
        --zero_columns_;
      }
    }
    in += n * size;
    count -= n;
    ++row;
    column = 0;
  }
}

TensorStats::TensorStats(DType dtype, const Shape& shape)
    : dtype_(dtype), lines_(shape) {}

void TensorStats::add_value(double value, uint64_t times) {
  stats_.count += times;
  if (!(std::abs(value) <= kMostFinite)) {
    (std::isnan(value) ? stats_.nans : stats_.infs) += times;
    return;
  }
  stats_.min = std::min(stats_.min, value);
  stats_.max = std::max(stats_.max, value);
  if (value == 0) {
    stats_.zeros += times;
    return;
  }
  sum_.add(value, times);
  squares_.add(value * value, times);  // exact, of so few bits
  stats_.magnitudes[magnitude_slot(std::ilogb(value))] += times;
}

void TensorStats::add_page(const Tally& part, uint32_t page) {
  const uint32_t* const counts = part.counts_.data() + page * kPage;
  const bool folded = is_narrow(dtype_) && element_size(dtype_) == 1;
  const uint32_t to = folded ? 0 : page;
  Page* const kept =
      forgotten_ ? nullptr : &pages_.try_emplace(to).first->second;
  double values[kPage];
  const bool narrow = is_narrow(dtype_);
  if (narrow) page_values(dtype_, to, values);
  for (uint32_t i = 0; i < kPage; ++i) {
    if (counts[i] == 0) continue;
    if (kept) (*kept)[i] += counts[i];
    if (narrow) {
      add_value(values[i], counts[i]);
      continue;
    }
    const uint32_t exponent = (page * kPage + i) >> 7 & 0xff;
    if (exponent != 255)
      stats_.magnitudes[magnitude_slot(static_cast<int>(exponent) - 127)] +=
          counts[i];
  }
}

void TensorStats::add(Tally& part) {
  uint32_t* const counts = part.counts_.data();
  for (uint32_t page = 0; page < Tally::kCounts / kPage; ++page) {
    uint32_t* const begin = counts + page * kPage;
    uint32_t any = 0;
    for (uint32_t i = 0; i < kPage; ++i) any |= begin[i];
    if (any == 0) continue;
    add_page(part, page);
    std::fill_n(begin, kPage, 0);
  }
  if (!is_narrow(dtype_)) stats_ += part.stats_;
  sum_ += part.sum_;
  squares_ += part.squares_;
  join(part.lines_.some_in_row, lines_.some_in_row);
  join(part.lines_.some_in_column, lines_.some_in_column);
  part.stats_ = {};
  part.sum_ = part.squares_ = {};
  part.pending_ = 0;
}

Stats::Quantiles TensorStats::quantiles() const {
  std::vector<std::pair<double, uint64_t>> all;
  double values[kPage];
  for (const auto& [page, counts] : pages_) {
    page_values(dtype_, page, values);
    for (uint32_t i = 0; i < kPage; ++i)
      if (counts[i] != 0 && std::abs(values[i]) <= kMostFinite)
        all.emplace_back(values[i], counts[i]);
  }
  std::ranges::sort(all);
  Stats::Quantiles found{};
  const unsigned __int128 numbers = stats_.numbers();
  auto at = all.begin();
  uint64_t before = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const auto rank =
        static_cast<uint64_t>((numbers * Stats::kThousandths[i] + 999) / 1000);
    while (before + at->second < rank) before += (at++)->second;
    // The middle of a counter may be beyond the only value that it counted.
    // Zero has no sign here.
    found[i] = std::clamp(at->first, stats_.min, stats_.max) + 0.0;
  }
  return found;
}

Stats TensorStats::finish() {
  stats_.sum = sum_.value();
  stats_.sum_of_squares += squares_.value();
  // Their counters are also those of what is next to nothing.
  if (!is_narrow(dtype_)) stats_.magnitudes[0] -= stats_.zeros;
  if (!forgotten_ && stats_.numbers() != 0) stats_.quantiles = quantiles();
  stats_.quantile_error = is_narrow(dtype_) ? 0 : 1.0 / 256;
  if (lines_.rows != 0) {
    stats_.zero_rows = count_unset(lines_.some_in_row, lines_.rows);
    stats_.zero_columns = count_unset(lines_.some_in_column, lines_.columns);
  }
  return stats_;
}

uint64_t TensorStats::most_memory(const Shape& shape) {
  const uint64_t pages = std::min<uint64_t>(
      Tally::kCounts / kPage, 2 * element_count(shape).value_or(0));
  return sizeof(TensorStats) + pages * (sizeof(Page) + kNode) +
         Tally::memory_of(shape) - Tally::kMemory;
}

uint64_t TensorStats::memory() const {
  return sizeof *this + pages_.size() * (sizeof(Page) + kNode) +
         (lines_.some_in_row.size() + lines_.some_in_column.size()) * 8;
}

void TensorStats::forget_counts() {
  pages_.clear();
  forgotten_ = true;
}

}  // namespace ckpt::reshard
