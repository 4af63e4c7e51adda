// SPDX-License-Identifier: Apache-2.0
// Vectors that every tensor-parallel rank has whole, and not alike: the catalog
// has what they amount to, which is computed as it is read.
#include <algorithm>

#include "ckpt/error.h"
#include "formats/deepspeed/assemble.h"
#include "lib/decoding.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {
namespace {

// Elements [begin, end) of a rank's vector, if they lie side by side.
std::optional<FlatRange> run_of(const Piece& piece, const Tensor& tensor) {
  const bool whole = piece.box == Box::whole(tensor.shape);
  const Dims& strides = piece.extent.strides;
  const bool dense =
      strides.empty() ||
      (strides.size() == 1 && strides[0] == element_size(tensor.dtype));
  if (piece.transform != kNoTransform || !dense) return std::nullopt;
  if (whole && !piece.flat) return FlatRange{0, volume(piece.box)};
  if (whole) return *piece.flat;
  if (tensor.shape.size() != 1 || piece.flat) return std::nullopt;
  return FlatRange{piece.box.offset[0],
                   piece.box.offset[0] + piece.box.shape[0]};
}

bool can_be_merged(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

}  // namespace

void Assembler::merge(Tensor& tensor, Merge how,
                      const std::vector<std::vector<Piece>>& ranks) {
  if (!merged_of_) merged_of_ = std::make_shared<std::vector<File>>();
  const uint64_t count = element_count(tensor.shape).value();
  const uint64_t item = element_size(tensor.dtype);
  const bool mean = how == Merge::kMean;
  // f64 holds the sum of a few f16, bf16 or f32 exactly, so that the mean of
  // equal vectors is that vector in every bit. Added up in f16, as trainers'
  // own converters do it, three equal ones and a fourth are not.
  Combination all{.terms = {}, .exact = true};
  if (mean) all.divisor = static_cast<double>(ranks.size());
  for (const std::vector<Piece>& pieces : ranks) {
    Tensor& part = all.terms.emplace_back().tensor;
    part.name = tensor.name;
    part.dtype = tensor.dtype;
    part.shape = {1, 1, count};
    for (const Piece& piece : pieces) {
      const auto run = run_of(piece, tensor);
      if (!run || !can_be_merged(tensor.dtype))
        throw unfaithful_error({catalog_.path, text::printable(tensor.name)},
                               "differs between tensor-parallel ranks, and "
                               "{} elements stored in this way are not added "
                               "up",
                               ckpt::name(tensor.dtype));
      const uint64_t length = run->end - run->begin;
      Piece& at = part.pieces.emplace_back();
      at.box = {{0, 0, run->begin}, {1, 1, length}};
      at.extent = {.offset = piece.extent.offset,
                   .strides = {count * item, length * item, item},
                   .file = piece.extent.file};
    }
  }
  Decoding made{
      .coding = Coding::kCombined,
      .dtype = tensor.dtype,
      .rows = 1,
      .columns = count,
      .name = tensor.name,
      .files = merged_of_,
      .combined = std::make_shared<const Combination>(std::move(all))};
  (how == Merge::kSum ? sums_ : means_) += 1;
  if (how == Merge::kMean && first_mean_.empty()) first_mean_ = tensor.name;
  tensor.pieces = {
      {.box = Box::whole(tensor.shape),
       .flat = {},
       .extent = {.offset = 0,
                  .strides = {},
                  .file = static_cast<uint32_t>(catalog_.files.size())}}};
  catalog_.files.push_back(
      decoded_file(fmt::format("made:{} {} of {} ranks", tensor.name,
                               mean ? "mean" : "sum", ranks.size()),
                   count * item, std::move(made)));
}

void Assembler::say_merged() {
  *merged_of_ = catalog_.files;
  if (sums_ > 0)
    catalog_.assumptions.push_back(fmt::format(
        "{} vectors, of which each tensor-parallel rank adds its own, are the "
        "sums of all ranks' (in f64, rounded once)",
        sums_));
  if (means_ > 0)
    catalog_.assumptions.push_back(
        fmt::format("{} vectors that tensor-parallel ranks have each for "
                    "themselves ({} …) are their mean (in f64, rounded once)",
                    means_, text::printable(first_mean_)));
}

}  // namespace ckpt::deepspeed
