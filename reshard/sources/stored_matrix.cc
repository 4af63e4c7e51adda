// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "ckpt/error.h"
#include "lib/decoding.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/numbers/transform.h"
#include "reshard/sources/low_rank.h"

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
    : size_(element_size(tensor.dtype)) {
  content_.name = tensor.name;
  content_.dtype = tensor.dtype;
  if (!may_be_added(content_.dtype))
    throw unfaithful_error({{}, content_.name}, "its elements are {}",
                           ckpt::name(content_.dtype))
        .with_hint(
            "adapters are added to f32, bf16 and f16: `ckpt convert SRC DST "
            "--dtype bf16` first");
  if (tensor.shape.size() != 1 && tensor.shape.size() != 2)
    refuse(content_.name, "it is not a matrix");
  if (!tensor.grid.empty())
    refuse(content_.name, "its rows stand in another order");
  const bool flat = tensor.shape.size() == 1;
  content_.rows = tensor.shape[0];
  content_.columns = flat ? 1 : tensor.shape[1];
  for (const Piece& piece : tensor.pieces) {
    const bool copy =
        std::ranges::any_of(content_.parts, [&](const Part& part) {
          return part.row == piece.box.offset[0] &&
                 part.column == (flat ? 0 : piece.box.offset[1]) &&
                 part.rows == piece.box.shape[0] && !piece.flat;
        });
    if (copy) continue;
    const File& file = files.at(piece.extent.file);
    if (file.codec != Codec::kRaw && !is_made(file) && !is_decoded(file))
      refuse(content_.name, "its file is packed");
    const uint64_t rows = piece.box.shape[0];
    const uint64_t columns = flat ? 1 : piece.box.shape[1];
    const Dims& strides = piece.extent.strides;
    const bool apart =
        !flat && !strides.empty() && columns > 1 && strides[1] != size_;
    if (apart) refuse(content_.name, "the elements of its rows stand apart");
    content_.parts.push_back(
        {piece.box.offset[0], rows, flat ? 0 : piece.box.offset[1], columns,
         piece.flat ? piece.flat->begin : 0,
         piece.flat ? piece.flat->end : rows * columns, file,
         piece.extent.offset, strides.empty() ? columns * size_ : strides[0],
         piece.transform});
  }
}

StoredMatrix::StoredMatrix(Content content)
    : content_(std::move(content)), size_(element_size(content_.dtype)) {}

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
  apply_transform(part.transform, content_.dtype, bytes);
}

void StoredMatrix::load(uint64_t row, uint64_t rows, uint64_t column,
                        uint64_t columns, std::byte* out,
                        const ReadFile& read) const {
  for (const Part& part : content_.parts) {
    const uint64_t first = std::max(row, part.row);
    const uint64_t last = std::min(row + rows, part.row + part.rows);
    if (first >= last || column >= part.column + part.columns ||
        column + columns <= part.column)
      continue;
    const bool whole =
        part.begin == 0 && part.end == part.rows * content_.columns &&
        columns == content_.columns && part.columns == content_.columns &&
        part.stride == content_.columns * size_;
    if (whole) {
      const std::span<std::byte> bytes(out + (first - row) * columns * size_,
                                       (last - first) * columns * size_);
      read(part.file, part.offset + (first - part.row) * part.stride, bytes);
      apply_transform(part.transform, content_.dtype, bytes);
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
  if (content_.dtype == DType::f32)
    return load(row, rows, column, columns, bytes, read);
  const uint64_t count = rows * columns;
  std::vector<std::byte> narrow(count * size_);
  load(row, rows, column, columns, narrow.data(), read);
  best_cast_kernel().cast(content_.dtype, DType::f32, narrow.data(), bytes,
                          count);
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
  const uint64_t size = element_size(content_.dtype);
  if (offset % size || buffer.size() % size)
    throw bug_error({}, "a part of an element is asked for");
  uint64_t at = offset / size;
  const uint64_t end = at + buffer.size() / size;
  std::byte* out = buffer.data();
  while (at < end) {
    const uint64_t column = at % content_.columns;
    const bool whole = column == 0 && end - at >= content_.columns;
    const uint64_t rows = whole ? (end - at) / content_.columns : 1;
    const uint64_t columns =
        whole ? content_.columns
              : std::min(content_.columns - column, end - at);
    make(at / content_.columns, rows, column, columns, out);
    at += rows * columns;
    out += rows * columns * size;
  }
}

}  // namespace ckpt::reshard
