#include "reshard/numeric.h"

#include <algorithm>
#include <cmath>

#include "reshard/torch/load.h"

namespace ckpt::reshard {

Stats& Stats::operator+=(const Stats& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  sum += other.sum;
  sum_of_squares += other.sum_of_squares;
  count += other.count;
  nans += other.nans;
  infs += other.infs;
  return *this;
}

void add_stats(DType dtype, const std::byte* in, uint64_t count, Stats& stats) {
  const TorchModule& torch = TorchModule::get();
  CkptTorchStats part = {Stats{}.min, Stats{}.max, 0, 0, 0, 0, 0};
  torch.require(torch.api().stats(torch.number(dtype, {}), in, count, &part));
  stats += {part.min,   part.max,  part.sum, part.sum_of_squares,
            part.count, part.nans, part.infs};
}

Comparison& Comparison::operator+=(const Comparison& later) {
  max_abs = std::max(max_abs, later.max_abs);
  max_rel = std::max(max_rel, later.max_rel);
  if (mismatches == 0) first_mismatch = count + later.first_mismatch;
  count += later.count;
  mismatches += later.mismatches;
  return *this;
}

void add_comparison(DType dtype_a, const std::byte* a, DType dtype_b,
                    const std::byte* b, uint64_t count, double rtol,
                    double atol, Comparison& comparison) {
  const TorchModule& torch = TorchModule::get();
  CkptTorchComparison part = {};
  torch.require(torch.api().compare(torch.number(dtype_a, {}), a,
                                    torch.number(dtype_b, {}), b, count, rtol,
                                    atol, &part));
  comparison += {part.max_abs, part.max_rel, part.count, part.mismatches,
                 part.first_mismatch};
}

double mean(const Stats& stats) {
  const uint64_t finite = stats.count - stats.nans - stats.infs;
  return stats.sum / static_cast<double>(finite);
}

double deviation(const Stats& stats) {
  const uint64_t finite = stats.count - stats.nans - stats.infs;
  const double middle = mean(stats);
  const double variance =
      stats.sum_of_squares / static_cast<double>(finite) - middle * middle;
  return std::sqrt(std::max(variance, 0.0));
}

}  // namespace ckpt::reshard
