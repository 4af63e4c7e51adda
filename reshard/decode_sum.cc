// SPDX-License-Identifier: Apache-2.0
// What the vectors of several ranks amount to: the sum or the mean of what each
// rank adds on its own (lib/decoding.h, kSum).
//
//   f64 holds the sum of a few f16, bf16 or f32 exactly, so that the mean of
//   equal vectors is that vector in every bit. Added up in f16, as trainers'
//   own converters do it, three equal ones and a fourth are not.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ckpt/error.h"
#include "reshard/cast_kernel.h"
#include "reshard/decode.h"
#include "reshard/sums.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kSummedAtOnce = 8 << 10;  // elements

// A sum that rounds to an infinity is of ranks that are none.
void check_range(const Decoding& made, uint64_t first,
                 const std::vector<double>& sums) {
  const double limit =
      made.dtype == DType::f16 ? 65520.0 : std::numeric_limits<float>::max();
  for (size_t i = 0; i < sums.size(); ++i)
    if (std::fabs(sums[i]) >= limit && std::isfinite(sums[i]))
      throw unfaithful_error({{}, made.name},
                             "[{}] of all ranks together is {:g}, which {} "
                             "can't hold",
                             first + i, sums[i], ckpt::name(made.dtype));
}

}  // namespace

void DecodeReader::read_sum(const Decoding& made, uint64_t first,
                            uint64_t count, std::byte* out) {
  const uint64_t ranks = made.codes.shape[0];
  std::vector<double> sums;
  while (count > 0) {
    const uint64_t few = std::min(count, kSummedAtOnce);
    sums.assign(few, 0);
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      floats(made, made.codes, {rank, 0, 1, first, few}, line_);
      for (uint64_t i = 0; i < few; ++i) sums[i] += line_[i];
    }
    if (made.mean)
      for (double& sum : sums) sum /= static_cast<double>(ranks);
    check_range(made, first, sums);
    std::ranges::transform(sums, line_.begin(),
                           [](double sum) { return static_cast<float>(sum); });
    narrow_sum(made.dtype, line_.data(), out, few);
    first += few;
    count -= few;
    out += few * element_size(made.dtype);
  }
}

}  // namespace ckpt::reshard
