// SPDX-License-Identifier: Apache-2.0
#include "convert/small_tensor.h"

#include <cstring>

#include "lib/io/file.h"

namespace ckpt::families {
namespace {

template <class Stored, class Number>
std::vector<Number> numbers_of(const std::string& bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < numbers.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    numbers[i] = static_cast<Number>(stored);
  }
  return numbers;
}

bool is_contiguous(const Tensor& tensor, const Dims& strides) {
  uint64_t next = element_size(tensor.dtype);
  for (size_t d = tensor.shape.size(); d-- > 0 && !strides.empty();) {
    if (tensor.shape[d] != 1 && strides[d] != next) return false;
    next *= tensor.shape[d];
  }
  return true;
}

}  // namespace

std::optional<std::string> small_tensor(const Catalog& catalog,
                                        const Tensor& tensor, uint64_t most) {
  const auto bytes = byte_size(tensor.dtype, tensor.shape);
  if (!bytes || *bytes > most || tensor.pieces.empty() || !tensor.grid.empty())
    return std::nullopt;
  const Piece& piece = tensor.pieces.front();
  const Extent& extent = piece.extent;
  if (piece.box != Box::whole(tensor.shape) || piece.flat || extent.archive ||
      piece.transform != kNoTransform || !is_contiguous(tensor, extent.strides))
    return std::nullopt;
  const File& file = catalog.files.at(extent.file);
  if (file.codec == Codec::kMemory && file.fill.empty() && file.memory &&
      extent.offset + *bytes <= file.size)
    return std::string(
        reinterpret_cast<const char*>(file.memory) + extent.offset, *bytes);
  if (file.codec != Codec::kRaw || file.delta) return std::nullopt;
  return io::Handle::open_read(file.path).read_string(extent.offset, *bytes);
}

std::optional<std::vector<int64_t>> small_integers(const Catalog& catalog,
                                                   const Tensor& tensor,
                                                   uint64_t most) {
  const auto bytes = small_tensor(catalog, tensor, most);
  if (!bytes) return std::nullopt;
  switch (tensor.dtype) {
    case DType::i64:
      return numbers_of<int64_t, int64_t>(*bytes);
    case DType::i32:
      return numbers_of<int32_t, int64_t>(*bytes);
    case DType::u8:
      return numbers_of<uint8_t, int64_t>(*bytes);
    case DType::i8:
      return numbers_of<int8_t, int64_t>(*bytes);
    default:
      return std::nullopt;
  }
}

std::optional<std::vector<float>> small_floats(const Catalog& catalog,
                                               const Tensor& tensor,
                                               uint64_t most) {
  if (tensor.dtype != DType::f32) return std::nullopt;
  const auto bytes = small_tensor(catalog, tensor, most);
  if (!bytes) return std::nullopt;
  return numbers_of<float, float>(*bytes);
}

}  // namespace ckpt::families
