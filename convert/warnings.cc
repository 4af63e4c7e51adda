// SPDX-License-Identifier: Apache-2.0
#include "convert/warnings.h"

#include <fmt/format.h>

#include <algorithm>

namespace ckpt::families {

void warn_of_padding(Catalog& source, const Numbers& numbers) {
  if (numbers.dialect().name != "mcore" || numbers.side() != "mcore" ||
      !numbers.eval("vocab_size").is_null())
    return;
  for (const std::string& line : numbers.used())
    if (line.find("$V") != line.npos && line.find("padded") != line.npos)
      source.problems.push_back(
          {Problem::Severity::kWarning, "vocabulary", source.path, "",
           "the args say how many rows the vocabulary was padded to, not how "
           "many are in use: all are kept; --vocab-size N cuts the padding"});
}

void warn_of_rounding(Catalog& source, DType dtype) {
  constexpr uint8_t kSums = kAddOne | kSubtractOne;
  const auto computed = [](const Tensor& tensor) {
    return std::ranges::any_of(tensor.pieces, [](const Piece& piece) {
      return (piece.transform & kSums) != 0;
    });
  };
  const auto count = std::ranges::count_if(source.tensors, computed);
  if (count == 0) return;
  source.problems.push_back(
      {Problem::Severity::kWarning, "rounded", source.path, "",
       fmt::format("{} norms are stored with one more in one of the dialects, "
                   "and rounded to {}: the way back does not give the same "
                   "bits",
                   count, name(dtype))});
}

}  // namespace ckpt::families
