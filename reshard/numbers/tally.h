// SPDX-License-Identifier: Apache-2.0
// Elements counted by their value, from which all statistics are taken.
//
// A type of up to 16 bits has a counter for each of its values: all that is
// asked of a tensor follows from them, exactly. Of wider types the counters are
// for sign, exponent and the 7 highest bits of the fraction, as f32 has them:
//
//   | sign | exponent, 8 bits | 7 bits | what is left, 16 bits |
//   |         counter number, 16 bits  |
//
// which is all that quantiles need; sums, least and largest are kept beside.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/numbers/exact_sum.h"
#include "reshard/numbers/stats.h"

namespace ckpt::reshard {

// Which rows and columns of a matrix have an element that is not zero.
struct Lines {
  explicit Lines(const Shape& shape);
  uint64_t rows = 0, columns = 0;                     // zero: of something else
  std::vector<uint64_t> some_in_row, some_in_column;  // bits

  // More lines than this are not looked at.
  static constexpr uint64_t kMost = uint64_t{1} << 22;
};

class Tally;

// All that is known of a tensor, from the tallies of its parts.
class TensorStats {
 public:
  TensorStats(DType dtype, const Shape& shape);
  void add(Tally& part);  // and empties it
  uint64_t counted() const { return stats_.count; }
  // When all is counted.
  Stats finish();

  uint64_t memory() const;  // bytes
  // With every counter in use that so many elements can use.
  static uint64_t most_memory(const Shape& shape);
  // Gives up what quantiles are taken from, which is most of its memory.
  void forget_counts();

 private:
  using Page = std::array<uint64_t, 256>;
  void add_page(const Tally& part, uint32_t page);
  void add_value(double value, uint64_t times);
  Stats::Quantiles quantiles() const;

  DType dtype_;
  bool forgotten_ = false;
  Stats stats_;
  ExactSum sum_, squares_;
  std::map<uint32_t, Page> pages_;  // of counters that are not all zero
  Lines lines_;
};

// A part of one tensor, counted by one thread at a time.
class Tally {
 public:
  Tally() : counts_(kCounts) {}
  void begin(DType dtype, const Shape& shape);
  // `count` elements, of which the first is number `first` of the tensor.
  void add(uint64_t first, const std::byte* in, uint64_t count);
  // It has to be emptied before more is added.
  bool full() const { return pending_ >= uint64_t{1} << 31; }

  static constexpr uint64_t kCounts = 1 << 16;
  static constexpr uint64_t kMemory = kCounts * sizeof(uint32_t) + (1 << 14);
  static uint64_t memory_of(const Shape& shape);  // kMemory, and its lines

 private:
  friend class TensorStats;
  void count_narrow(const std::byte* in, uint64_t count);
  void count_floats(const std::byte* in, uint64_t count);
  void count_wide(const std::byte* in, uint64_t count);
  void flush_floats();
  void look_at_lines(uint64_t first, const std::byte* in, uint64_t count);

  DType dtype_ = DType::f32;
  uint64_t pending_ = 0;  // elements
  std::vector<uint32_t> counts_;
  // Of wider types.
  Stats stats_;
  ExactSum sum_, squares_;
  // Mantissas of f32 by exponent; of two sums in turn, so that one addition
  // seldom waits for the last one.
  struct Mantissas {
    int64_t sum = 0, squares = 0;
  };
  std::array<std::array<Mantissas, 256>, 2> mantissas_{};
  Lines lines_{Shape()};
  uint64_t zero_columns_ = 0;  // so far
};

}  // namespace ckpt::reshard
