// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ckpt/error.h"
#include "lib/decoding.h"
#include "reshard/cast_kernel.h"
#include "reshard/low_rank.h"
#include "reshard/transform.h"

namespace ckpt::reshard {
namespace {

bool may_be_added(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw unfaithful_error({{}, name}, "{}: an adapter can't be added to it",
                         what)
      .with_hint(
          "`ckpt convert SRC DST --to safetensors` first, without --adapter");
}

}  // namespace

StoredMatrix::StoredMatrix(const Tensor& tensor, const std::vector<File>& files)
    : name_(tensor.name), dtype_(tensor.dtype), size_(element_size(dtype_)) {
  if (!may_be_added(dtype_))
    throw unfaithful_error({{}, name_}, "its elements are {}",
                           ckpt::name(dtype_))
        .with_hint(
            "adapters are added to f32, bf16 and f16: `ckpt convert SRC DST "
            "--dtype bf16` first");
  if (tensor.shape.size() != 1 && tensor.shape.size() != 2)
    refuse(name_, "it is not a matrix");
  if (!tensor.grid.empty()) refuse(name_, "its rows stand in another order");
  const bool flat = tensor.shape.size() == 1;
  rows_ = tensor.shape[0];
  columns_ = flat ? 1 : tensor.shape[1];
  for (const Piece& piece : tensor.pieces) {
    const bool copy = std::ranges::any_of(parts_, [&](const Part& part) {
      return part.row == piece.box.offset[0] &&
             part.column == (flat ? 0 : piece.box.offset[1]) &&
             part.rows == piece.box.shape[0] && !piece.flat;
    });
    if (copy) continue;
    const File& file = files.at(piece.extent.file);
    if (file.codec != Codec::kRaw && !is_made(file) && !is_decoded(file))
      refuse(name_, "its file is packed");
    const uint64_t rows = piece.box.shape[0];
    const uint64_t columns = flat ? 1 : piece.box.shape[1];
    const Dims& strides = piece.extent.strides;
    const bool apart =
        !flat && !strides.empty() && columns > 1 && strides[1] != size_;
    if (apart) refuse(name_, "the elements of its rows stand apart");
    parts_.push_back({piece.box.offset[0], rows, flat ? 0 : piece.box.offset[1],
                      columns, piece.flat ? piece.flat->begin : 0,
                      piece.flat ? piece.flat->end : rows * columns, file,
                      piece.extent.offset,
                      strides.empty() ? columns * size_ : strides[0],
                      piece.transform});
  }
}

// Columns [column, end) of a row; `part` has some or all of them.
void StoredMatrix::load_row(const Part& part, uint64_t row, uint64_t column,
                            uint64_t end, std::byte* out,
                            const ReadFile& read) const {
  const uint64_t before = (row - part.row) * part.columns;
  // In elements of the box: [low, high) are both wanted and there.
  uint64_t low = before + std::max(column, part.column) - part.column;
  uint64_t high =
      before + std::min(end, part.column + part.columns) - part.column;
  low = std::max(low, part.begin);
  high = std::min(high, part.end);
  if (low >= high) return;
  const uint64_t offset = part.stride == part.columns * size_
                              ? part.offset + (low - part.begin) * size_
                              : part.offset + (row - part.row) * part.stride +
                                    (low - before) * size_;
  const std::span<std::byte> bytes(
      out + (low - before + part.column - column) * size_,
      (high - low) * size_);
  read(part.file, offset, bytes);
  apply_transform(part.transform, dtype_, bytes);
}

void StoredMatrix::load(uint64_t row, uint64_t rows, uint64_t column,
                        uint64_t columns, std::byte* out,
                        const ReadFile& read) const {
  for (const Part& part : parts_) {
    const uint64_t first = std::max(row, part.row);
    const uint64_t last = std::min(row + rows, part.row + part.rows);
    if (first >= last || column >= part.column + part.columns ||
        column + columns <= part.column)
      continue;
    const bool whole = part.begin == 0 && part.end == part.rows * columns_ &&
                       columns == columns_ && part.columns == columns_ &&
                       part.stride == columns_ * size_;
    if (whole) {
      const std::span<std::byte> bytes(out + (first - row) * columns * size_,
                                       (last - first) * columns * size_);
      read(part.file, part.offset + (first - part.row) * part.stride, bytes);
      apply_transform(part.transform, dtype_, bytes);
      continue;
    }
    for (uint64_t r = first; r < last; ++r)
      load_row(part, r, column, column + columns,
               out + (r - row) * columns * size_, read);
  }
}

void StoredMatrix::load(uint64_t row, uint64_t rows, uint64_t column,
                        uint64_t columns, float* out,
                        const ReadFile& read) const {
  auto* bytes = reinterpret_cast<std::byte*>(out);
  if (dtype_ == DType::f32)
    return load(row, rows, column, columns, bytes, read);
  const uint64_t count = rows * columns;
  std::vector<std::byte> narrow(count * size_);
  load(row, rows, column, columns, narrow.data(), read);
  best_cast_kernel().cast(dtype_, DType::f32, narrow.data(), bytes, count);
}

void Borrowed::read(uint64_t offset, std::span<std::byte> buffer,
                    const ReadFile& read) const {
  if (same_bytes(from_, to_)) return read(file_, begin_ + offset, buffer);
  const uint64_t wide = element_size(from_), narrow = element_size(to_);
  const uint64_t first = offset / narrow, all = buffer.size() / narrow;
  std::vector<std::byte> stored(all * wide);
  read(file_, begin_ + first * wide, stored);
  best_cast_kernel().cast(from_, to_, stored.data(), buffer.data(), all);
}

void StoredMatrix::each_part(uint64_t offset, std::span<std::byte> buffer,
                             const MakePart& make) const {
  const uint64_t size = element_size(dtype_);
  if (offset % size || buffer.size() % size)
    throw bug_error({}, "a part of an element is asked for");
  uint64_t at = offset / size;
  const uint64_t end = at + buffer.size() / size;
  std::byte* out = buffer.data();
  while (at < end) {
    const uint64_t column = at % columns_;
    const bool whole = column == 0 && end - at >= columns_;
    const uint64_t rows = whole ? (end - at) / columns_ : 1;
    const uint64_t columns =
        whole ? columns_ : std::min(columns_ - column, end - at);
    make(at / columns_, rows, column, columns, out);
    at += rows * columns;
    out += rows * columns * size;
  }
}

}  // namespace ckpt::reshard
