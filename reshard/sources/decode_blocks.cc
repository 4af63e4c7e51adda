// SPDX-License-Identifier: Apache-2.0
// Numbers from ggml's blocks and blocks from numbers (Coding::kGgml,
// kGgmlBlocks). A range of the file may begin and end inside a block: whole
// blocks are made, and what was asked for is taken from them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ckpt/error.h"
#include "lib/trace.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/sources/decode.h"
#include "reshard/sources/decode_ggml.h"
#include "reshard/sources/decode_kernel.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kNumbersAtOnce = 64 << 10;
constexpr uint32_t kMostF16 = 0x477FE000;  // as the bits of an f32
constexpr uint32_t kInfinity = 0x7F800000;

}  // namespace

// Makes line_: the numbers of a tile of blocks, whose columns are blocks.
void DecodeReader::numbers_of_blocks(const Decoding& made, const Tile& blocks) {
  const GgmlInfo& type = *ggml_info(made.ggml);
  const uint64_t count = blocks.rows * blocks.columns;
  Tile stored = blocks;
  stored.column *= type.bytes;
  stored.columns *= type.bytes;
  codes_.resize(count * type.bytes);
  box(made, made.codes, stored, codes_.data());
  const trace::Span span("dequantize", count * type.elements * sizeof(float));
  line_.resize(count * type.elements);
  ggml_decode(made.ggml)(codes_.data(), count, line_.data());
}

// Makes narrow_: the blocks of a tile of numbers.
void DecodeReader::blocks_of_numbers(const Decoding& made, const Tile& blocks) {
  const GgmlInfo& type = *ggml_info(made.ggml);
  const uint64_t count = blocks.rows * blocks.columns;
  Tile stored = blocks;
  stored.column *= type.elements;
  stored.columns *= type.elements;
  floats(made, made.codes, stored, line_);
  const trace::Span span("quantize", line_.size() * sizeof(float));
  narrow_.resize(count * type.bytes);
  ggml_encode(made.ggml)(line_.data(), count, narrow_.data());
  const uint32_t largest =
      best_decode_kernel().largest(line_.data(), line_.size());
  if (largest <= kMostF16) return;
  // Scales are f16 and may have no room for such numbers. A number that is not
  // finite may even be lost without a trace (MXFP4).
  std::vector<float> back(largest < kInfinity ? line_.size() : 0);
  if (!back.empty()) ggml_decode(made.ggml)(narrow_.data(), count, back.data());
  const std::vector<float>& seen = back.empty() ? line_ : back;
  const auto bad = std::ranges::find_if_not(
      seen, [](float number) { return std::isfinite(number); });
  if (bad == seen.end()) return;
  const auto at = static_cast<uint64_t>(bad - seen.begin());
  const char* what = back.empty() ? "is not finite" : "is too large";
  throw input_error(
      {made.files->at(made.codes.pieces.front().extent.file).path, made.name},
      "a number in the block of {} at [{}, {}] {}", type.name,
      stored.row + at / stored.columns,
      stored.column + at % stored.columns / type.elements * type.elements, what)
      .with_hint(fmt::format("`ckpt inspect --stats` shows such numbers; {} "
                             "has no room for them",
                             type.name));
}

void DecodeReader::read_ggml(const Decoding& made, uint64_t first,
                             uint64_t count, std::byte* out) {
  const GgmlInfo& type = *ggml_info(made.ggml);
  const bool encodes = made.coding == Coding::kGgmlBlocks;
  const uint64_t unit = encodes ? type.bytes : type.elements;
  const uint64_t width = made.columns / type.elements * unit;
  const uint64_t element = element_size(made.dtype);
  const CastStep narrow = best_cast_kernel().narrow(DType::f32, made.dtype);
  while (count > 0) {
    const uint64_t row = first / width;
    const uint64_t column = first % width;
    Tile blocks{row / made.rows, row % made.rows, 1, column / unit, 0};
    const uint64_t skip = column % unit;
    const uint64_t most = kNumbersAtOnce / type.elements;
    uint64_t take = std::min({count, width - column, most * unit - skip});
    blocks.columns = (skip + take + unit - 1) / unit;
    if (take == width) {
      blocks.rows =
          std::clamp<uint64_t>(most / blocks.columns, 1,
                               std::min(count / width, made.rows - blocks.row));
      take *= blocks.rows;
    }
    if (encodes) {
      blocks_of_numbers(made, blocks);
      std::memcpy(out, narrow_.data() + skip, take);
    } else {
      numbers_of_blocks(made, blocks);
      const auto* from =
          reinterpret_cast<const std::byte*>(line_.data() + skip);
      if (narrow)
        narrow(from, out, take);
      else
        std::memcpy(out, from, take * element);
    }
    first += take;
    count -= take;
    out += take * element;
  }
}

}  // namespace ckpt::reshard
