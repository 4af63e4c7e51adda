// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources/combine.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/parallel.h"
#include "reshard/sources/decode.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {
namespace {

using TermLines = std::vector<std::vector<float>>;

uint64_t elements_of(const Decoding& made) {
  return made.batch * made.rows * made.columns;
}

// Products of terms, or of their differences from the first, in f64: in the
// order of the elements, so that they are the same in every run.
class Products {
 public:
  Products(DecodeReader& reader, const Decoding& made, bool deltas)
      : count_(made.combined->terms.size()), sums_(count_ * count_) {
    reader.each_line(made, [&](uint64_t, TermLines& lines) {
      if (deltas)
        for (size_t t = 1; t < count_; ++t)
          for (size_t i = 0; i < lines[t].size(); ++i)
            lines[t][i] -= lines[0][i];
      for (size_t a = deltas ? 1 : 0; a < count_; ++a)
        for (size_t b = a; b < count_; ++b) add(lines, a, b);
    });
  }
  double of(size_t a, size_t b) const { return sums_[a * count_ + b]; }
  double norm(size_t a) const { return std::sqrt(of(a, a)); }

 private:
  void add(const TermLines& lines, size_t a, size_t b) {
    double sum = 0;
    for (size_t i = 0; i < lines[a].size(); ++i)
      sum += double{lines[a][i]} * double{lines[b][i]};
    sums_[a * count_ + b] += sum;
  }

  size_t count_;
  std::vector<double> sums_;
};

void measure_slerp(DecodeReader& reader, const Decoding& made, double t,
                   Combination& all) {
  constexpr double kLeastNorm = 1e-8, kParallel = 0.9995;
  const Products products(reader, made, false);
  const auto norm = [&](size_t term) {
    const double length = products.norm(term);
    return length > kLeastNorm ? length : 1;
  };
  const double dot =
      std::clamp(products.of(0, 1) / (norm(0) * norm(1)), -1.0, 1.0);
  const bool line = std::fabs(dot) > kParallel;
  const double theta = std::acos(dot);
  all.terms[0].weight =
      line ? 1 - t : std::sin((1 - t) * theta) / std::sin(theta);
  all.terms[1].weight = line ? t : std::sin(t * theta) / std::sin(theta);
}

void measure_stock(DecodeReader& reader, const Decoding& made,
                   Combination& all) {
  constexpr double kLeast = 1e-6;
  const Products products(reader, made, true);
  const size_t count = all.terms.size() - 1;
  double sum = 0, pairs = 0;
  for (size_t a = 1; a <= count; ++a)
    for (size_t b = a + 1; b <= count; ++b, ++pairs)
      sum +=
          std::clamp(products.of(a, b) /
                         std::max(products.norm(a) * products.norm(b), kLeast),
                     -1.0, 1.0);
  const double cosine = pairs > 0 ? sum / pairs : 1;
  const auto models = static_cast<double>(count);
  const double below = 1 + (models - 1) * cosine;
  const double t = std::fabs(below) < kLeast ? 0 : models * cosine / below;
  all.terms[0].weight = 1 - t;
  for (size_t i = 1; i <= count; ++i) all.terms[i].weight = t / models;
}

// The factor that gives what is kept the sum of magnitudes that all had.
void measure_factors(DecodeReader& reader, const Decoding& made,
                     Combination& all) {
  constexpr double kLeast = 1e-7;
  std::vector<std::array<double, 2>> sums(all.terms.size());
  reader.each_line(made, [&](uint64_t first, const TermLines& lines) {
    for (size_t t = 1; t < lines.size(); ++t) {
      if (!all.terms[t].kept) continue;
      std::array<double, 2> part{};
      for (size_t i = 0; i < lines[t].size(); ++i) {
        const float delta = lines[t][i] - lines[0][i];
        part[0] += std::fabs(delta);
        if (is_kept(*all.terms[t].kept, first + i, delta))
          part[1] += std::fabs(delta);
      }
      sums[t][0] += part[0];
      sums[t][1] += part[1];
    }
  });
  for (size_t t = 1; t < all.terms.size(); ++t)
    if (all.terms[t].kept && sums[t][0] >= kLeast && sums[t][1] >= kLeast)
      all.terms[t].kept->factor = static_cast<float>(sums[t][0] / sums[t][1]);
}

// Finds the magnitude of the k-th largest delta by its bits: the upper ones in
// a first pass, the lower ones of those with the same upper ones in a second.
// Of several deltas that are as large, a third one counts those that are
// wanted.
class Largest {
 public:
  Largest(const Measure& measure, const Decoding& made, Combination& all)
      : all_(all) {
    const uint64_t elements = elements_of(made);
    for (size_t t = 1; t < all.terms.size(); ++t) {
      const double density = measure.densities.at(t - 1);
      const auto wanted = std::max<uint64_t>(
          1, static_cast<uint64_t>(density * static_cast<double>(elements)));
      if (density >= 1 || wanted >= elements) continue;
      all.terms[t].kept.emplace();
      if (density <= 0)
        all.terms[t].kept->share = 0;
      else
        sought_.push_back({t, wanted, 0, {}});
    }
  }

  void find(DecodeReader& reader, const Decoding& made) {
    if (sought_.empty()) return;
    count(reader, made, kLow, UINT32_MAX);
    for (Sought& one : sought_) one.bits = settle(one) << kLow;
    count(reader, made, 0, kUpper);
    bool exact = true;
    for (Sought& one : sought_) {
      one.bits |= settle(one);
      KeptDeltas& kept = *all_.terms[one.term].kept;
      kept.least = one.bits;
      exact = exact && one.as_large == one.wanted;
    }
    if (!exact) take_first(reader, made);
  }

 private:
  static constexpr uint32_t kLow = 15;
  static constexpr uint32_t kUpper = 0x7FFFFFFF >> kLow << kLow;

  struct Sought {
    size_t term;
    uint64_t wanted;  // of what is not larger than what was settled
    uint32_t bits;    // of the k-th largest, as far as it is known
    std::vector<uint64_t> counts;
    uint64_t as_large = 0;
  };

  template <class Use>
  void each(DecodeReader& reader, const Decoding& made, const Use& use) {
    reader.each_line(made, [&](uint64_t first, const TermLines& lines) {
      for (Sought& one : sought_)
        for (size_t i = 0; i < lines[0].size(); ++i)
          use(one, first + i,
              std::bit_cast<uint32_t>(lines[one.term][i] - lines[0][i]) &
                  0x7FFFFFFF);
    });
  }

  // Counts by the bits above `shift`, of those that have the settled ones.
  void count(DecodeReader& reader, const Decoding& made, uint32_t shift,
             uint32_t settled) {
    for (Sought& one : sought_) one.counts.assign(1 << 16, 0);
    each(reader, made, [&](Sought& one, uint64_t, uint32_t bits) {
      if (settled != UINT32_MAX && (bits & settled) != one.bits) return;
      ++one.counts[(bits >> shift) & 0xFFFF];
    });
  }

  static uint32_t settle(Sought& one) {
    size_t at = one.counts.size() - 1;
    for (; at > 0 && one.counts[at] < one.wanted; --at)
      one.wanted -= one.counts[at];
    one.as_large = one.counts[at];
    return static_cast<uint32_t>(at);
  }

  void take_first(DecodeReader& reader, const Decoding& made) {
    for (Sought& one : sought_) all_.terms[one.term].kept->until = 0;
    each(reader, made, [&](Sought& one, uint64_t index, uint32_t bits) {
      if (bits != one.bits || one.wanted == 0) return;
      all_.terms[one.term].kept->until = index + 1;
      --one.wanted;
    });
  }

  Combination& all_;
  std::vector<Sought> sought_;
};

void measure_one(DecodeReader& reader, const Decoding& made,
                 const Measure& measure, Combination& all) {
  using enum Measure::What;
  switch (measure.what) {
    case kNothing:
      break;
    case kSlerp:
      return measure_slerp(reader, made, measure.t, all);
    case kStock:
      return measure_stock(reader, made, all);
    case kLargest:
      Largest(measure, made, all).find(reader, made);
      break;
    case kByChance:
      break;
  }
  if (measure.rescale) measure_factors(reader, made, all);
}

}  // namespace

void measure(const std::vector<Decoding*>& all, const Measure& measure) {
  HandleCache handles;
  parallel_for(all.size(), [&](size_t i) {
    if (interrupted()) throw Interrupted("stopped; nothing was written");
    Decoding& made = *all[i];
    const auto found = std::make_shared<Combination>(*made.combined);
    DecodeReader reader(handles);
    measure_one(reader, made, measure, *found);
    made.combined = found;
  });
}

}  // namespace ckpt::reshard
