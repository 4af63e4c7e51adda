// SPDX-License-Identifier: Apache-2.0
#include "api/salvage/gone.h"

#include <algorithm>

namespace ckpt::library {
namespace {

bool is_packed(const Tensor& tensor, const Piece& piece) {
  if (piece.extent.strides.empty() || piece.flat) return true;
  const Dims packed = row_major_strides(piece.box.shape);
  const uint64_t size = element_size(tensor.dtype);
  for (size_t d = 0; d < packed.size(); ++d)
    if (piece.box.shape[d] > 1 && piece.extent.strides[d] != packed[d] * size)
      return false;
  return true;
}

uint64_t place_of(const Piece& piece, uint64_t element) {
  uint64_t at = piece.extent.offset;
  for (size_t d = piece.box.shape.size(); d-- > 0;) {
    const uint64_t extent = std::max<uint64_t>(1, piece.box.shape[d]);
    at += element % extent * piece.extent.strides[d];
    element /= extent;
  }
  return at;
}

void add(std::vector<FlatRange>& ranges, FlatRange range) {
  if (range.begin >= range.end) return;
  if (!ranges.empty() && ranges.back().end >= range.begin)
    ranges.back().end = std::max(ranges.back().end, range.end);
  else
    ranges.push_back(range);
}

bool overlaps(const std::vector<salvage::Range>& gone, uint64_t begin,
              uint64_t end) {
  return std::ranges::any_of(gone, [=](const salvage::Range& range) {
    return range.begin < end && begin < range.end;
  });
}

}  // namespace

uint64_t element_count(const Piece& piece) {
  return piece.flat ? piece.flat->end - piece.flat->begin : volume(piece.box);
}

uint64_t count(const std::vector<FlatRange>& elements) {
  uint64_t sum = 0;
  for (const FlatRange& range : elements) sum += range.end - range.begin;
  return sum;
}

std::vector<FlatRange> gone_elements(const Tensor& tensor, const Piece& piece,
                                     const std::vector<salvage::Range>& gone) {
  std::vector<FlatRange> elements;
  const uint64_t total = element_count(piece);
  const uint64_t size = element_size(tensor.dtype);
  const uint64_t begin = piece.extent.offset;
  if (gone.empty() || total == 0) return elements;
  if (size == 0) {  // less than a byte: one byte holds several
    if (overlaps(gone, begin, begin + byte_size(tensor)))
      elements.push_back({0, total});
  } else if (is_packed(tensor, piece)) {
    for (const salvage::Range& range : gone) {
      if (range.end <= begin || range.begin >= begin + total * size) continue;
      const uint64_t from = std::max(range.begin, begin) - begin;
      const uint64_t to = std::min(range.end - begin, total * size);
      add(elements, {from / size, (to + size - 1) / size});
    }
  } else {
    for (uint64_t i = 0; i < total; ++i) {
      const uint64_t at = place_of(piece, i);
      if (overlaps(gone, at, at + size)) add(elements, {i, i + 1});
    }
  }
  return elements;
}

std::vector<FlatRange> minus(const std::vector<FlatRange>& a,
                             const std::vector<FlatRange>& b) {
  std::vector<FlatRange> rest;
  for (FlatRange range : a) {
    for (const FlatRange& hole : b) {
      if (hole.end <= range.begin || hole.begin >= range.end) continue;
      add(rest, {range.begin, hole.begin});
      range.begin = std::min(hole.end, range.end);
    }
    add(rest, range);
  }
  return rest;
}

std::vector<FlatRange> united(const std::vector<FlatRange>& a,
                              const std::vector<FlatRange>& b) {
  std::vector<FlatRange> both = a, all;
  both.insert(both.end(), b.begin(), b.end());
  std::ranges::sort(both, {}, &FlatRange::begin);
  for (const FlatRange& range : both) add(all, range);
  return all;
}

void for_each_run(const Tensor& tensor, const Piece& piece,
                  const std::vector<FlatRange>& elements,
                  const std::function<void(uint64_t element, uint64_t offset,
                                           uint64_t count)>& run) {
  const uint64_t size = element_size(tensor.dtype);
  const bool packed = is_packed(tensor, piece);
  for (const FlatRange& range : elements) {
    if (packed) {
      run(range.begin, piece.extent.offset + range.begin * size,
          range.end - range.begin);
      continue;
    }
    for (uint64_t i = range.begin; i < range.end; ++i)
      run(i, place_of(piece, i), 1);
  }
}

std::string filler(DType dtype, bool nan) {
  const auto bytes = [](std::initializer_list<int> list) {
    std::string text;
    for (const int byte : list) text += static_cast<char>(byte);
    return text;
  };
  const std::string f32 = bytes({0, 0, 0xC0, 0x7F});
  const std::string f64 = bytes({0, 0, 0, 0, 0, 0, 0xF8, 0x7F});
  if (nan) {
    switch (dtype) {
      case DType::f64:
        return f64;
      case DType::f32:
        return f32;
      case DType::bf16:
        return bytes({0xC0, 0x7F});
      case DType::f16:
        return bytes({0x00, 0x7E});
      case DType::c64:
        return f32 + f32;
      case DType::c128:
        return f64 + f64;
      case DType::f8_e4m3:
      case DType::f8_e5m2:
        return bytes({0x7F});
      default:
        break;
    }
  }
  return std::string(std::max<uint64_t>(1, element_size(dtype)), '\0');
}

}  // namespace ckpt::library
