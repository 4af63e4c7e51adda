// SPDX-License-Identifier: Apache-2.0
#include "api/check/rounded.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "lib/decoding.h"
#include "reshard/numbers/values.h"
#include "reshard/run/read.h"

namespace ckpt::library {
namespace {

// The largest error of a number that a type with one step for a whole block can
// make, as a part of the block's largest magnitude; nothing for types whose
// steps depend on a search. Scales are f16, which adds 2^-11 for each.
std::optional<double> most_error(GgmlType type) {
  constexpr double kHalf = 1.0 / 2048;
  using enum GgmlType;
  switch (type) {
    case q8_0:
      return 0.5 / 127 + kHalf;
    case q5_0:  // the other sign's largest has no code of its own
      return 1.0 / 16 + kHalf;
    case q4_0:
      return 1.0 / 8 + kHalf;
    case q5_1:  // of two magnitudes, a least and a largest
      return 1.0 / 31 + 3 * kHalf;
    case q4_1:
      return 1.0 / 15 + 3 * kHalf;
    case mxfp4:
      return 0.25 + kHalf;
    case tq1_0:
    case tq2_0:
      return 0.5 + kHalf;
    default:
      return std::nullopt;
  }
}

// What a type of so many bits may lose of a tensor (the root of the mean
// square, as a part of the numbers' own): twice what a uniform code of as many
// bits loses of evenly spread numbers. Other numbers are apart by 1.4.
double most_deviation(const GgmlInfo& info) {
  const double bits = 8.0 * info.bytes / info.elements;
  return std::min(0.9, 2 * std::exp2(1 - bits));
}

// Scales below f16's numbers are zero, or have few bits left: numbers that are
// no larger may be lost whole.
constexpr double kSmallest = 128.0 / (1 << 25);

// True if what is stored is beside one another along the last dimension.
bool lies_in_rows(const Tensor& tensor) {
  return std::ranges::all_of(tensor.pieces, [&](const Piece& piece) {
    return piece.extent.strides.empty() ||
           piece.extent.strides.back() == element_size(tensor.dtype);
  });
}

struct Errors {
  double largest = 0;  // of a block's largest magnitude
  double squares = 0, of_numbers = 0;
  bool finite = true;

  void add(const double* numbers, const double* kept, uint64_t count) {
    double most = 0, far = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const double apart = kept[i] - numbers[i];
      finite = finite && std::isfinite(apart);
      most = std::max(most, std::abs(numbers[i]));
      far = std::max(far, std::abs(apart));
      squares += apart * apart;
      of_numbers += numbers[i] * numbers[i];
    }
    if (far > kSmallest) largest = std::max(largest, (far - kSmallest) / most);
  }
  double deviation() const {
    return of_numbers > 0 ? std::sqrt(squares / of_numbers) : 0;
  }
};

struct OneSide {
  const Catalog& catalog;
  const Tensor& tensor;

  std::vector<double> read(const Box& box,
                           const reshard::RunOptions& run) const {
    std::vector<double> numbers(volume(box));
    const auto bytes = reshard::read_box(catalog, tensor, box, run);
    reshard::to_doubles(tensor.dtype, bytes.data(), numbers.size(),
                        numbers.data());
    return numbers;
  }
};

Errors errors_of(const OneSide& plain, const OneSide& blocks, uint64_t elements,
                 const Engine& engine) {
  // A tile is doubles on both sides beside its bytes.
  const uint64_t bytes = std::min<uint64_t>(engine.max_mem / 48, 8 << 20);
  reshard::RunOptions run;
  run.threads = engine.threads;
  run.max_mem = std::max<uint64_t>(engine.max_mem / 4, 1 << 20);
  run.digest = false;
  const bool rows = lies_in_rows(blocks.tensor);
  Errors errors;
  for (const Box& box : reshard::tiles(blocks.tensor, bytes)) {
    const auto numbers = plain.read(box, run);
    const auto kept = blocks.read(box, run);
    const uint64_t width = rows && !box.shape.empty() ? box.shape.back() : 0;
    const uint64_t step =
        width != 0 && width % elements == 0 ? elements : numbers.size();
    for (uint64_t at = 0; at < numbers.size(); at += step)
      errors.add(numbers.data() + at, kept.data() + at,
                 std::min(step, numbers.size() - at));
  }
  return errors;
}

}  // namespace

std::string blocks_of_one(const Catalog& a, const Tensor& x, const Catalog& b,
                          const Tensor& y) {
  const GgmlInfo* left = blocks_of(x, a);
  const GgmlInfo* right = blocks_of(y, b);
  if (!left == !right || x.shape != y.shape || !reshard::has_values(x.dtype) ||
      !reshard::has_values(y.dtype))
    return "";
  return std::string((left ? left : right)->name);
}

std::optional<Difference> rounded_difference(const Catalog& a, const Tensor& x,
                                             const Catalog& b, const Tensor& y,
                                             const std::string& type,
                                             const Engine& engine,
                                             std::vector<Rounded>& rounded) {
  const GgmlInfo& info = *ggml_from_name(type);
  const bool of_a = blocks_of(x, a) != nullptr;
  const OneSide left{a, x}, right{b, y};
  const Errors errors = errors_of(of_a ? right : left, of_a ? left : right,
                                  info.elements, engine);
  const std::optional<double> most = most_error(info.type);
  const double far = most ? errors.largest : errors.deviation();
  const double limit = most.value_or(most_deviation(info));
  if (!errors.finite)
    return Difference{"values", x.name,
                      "not a number on one side, or infinite"};
  if (far > limit)
    return Difference{
        "values", x.name,
        fmt::format(
            "more than rounding to {}: {} is {:.3g}, where the type allows "
            "{:.3g}",
            type,
            most ? "the largest error, of a block's largest number,"
                 : "the mean error, of the numbers' size,",
            far, limit)};
  auto found = std::ranges::find(rounded, type, &Rounded::type);
  if (found == rounded.end())
    found = rounded.insert(rounded.end(), Rounded{.type = type});
  ++found->tensors;
  found->largest = std::max(found->largest, errors.largest);
  found->deviation = std::max(found->deviation, errors.deviation());
  return std::nullopt;
}

}  // namespace ckpt::library
