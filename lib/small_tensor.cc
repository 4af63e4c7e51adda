// SPDX-License-Identifier: Apache-2.0
#include "lib/small_tensor.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>

#include "lib/io/file.h"

namespace ckpt {
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

// IEEE's half: a sign, 5 bits of exponent, 10 of fraction.
double of_half(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = bits >> 10 & 31;
  const double fraction = bits & 1023;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(fraction + 1024, exponent - 25);
}

double of_bfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
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
  const bool half = tensor.dtype == DType::f16;
  if (!half && tensor.dtype != DType::f32 && tensor.dtype != DType::bf16)
    return std::nullopt;
  const auto bytes = small_tensor(catalog, tensor, most);
  if (!bytes) return std::nullopt;
  if (tensor.dtype == DType::f32) return numbers_of<float, float>(*bytes);
  std::vector<float> numbers;
  for (const uint16_t bits : numbers_of<uint16_t, uint16_t>(*bytes))
    numbers.push_back(
        static_cast<float>(half ? of_half(bits) : of_bfloat16(bits)));
  return numbers;
}

std::optional<double> small_number(const Catalog& catalog,
                                   const Tensor& tensor) {
  if (element_count(tensor.shape).value_or(0) != 1) return std::nullopt;
  const auto bytes = small_tensor(catalog, tensor, sizeof(double));
  if (!bytes) return std::nullopt;
  switch (tensor.dtype) {
    case DType::f64:
      return numbers_of<double, double>(*bytes).front();
    case DType::f32:
      return numbers_of<float, double>(*bytes).front();
    case DType::f16:
      return of_half(numbers_of<uint16_t, uint16_t>(*bytes).front());
    case DType::bf16:
      return of_bfloat16(numbers_of<uint16_t, uint16_t>(*bytes).front());
    default:
      break;
  }
  const auto whole = small_integers(catalog, tensor, sizeof(int64_t));
  return whole ? std::optional(static_cast<double>(whole->front()))
               : std::nullopt;
}

uint32_t add_numbers(const std::vector<float>& numbers, const std::string& name,
                     Catalog& catalog) {
  // Files are copied freely and have no owner.
  static std::mutex mutex;
  static auto& kept = *new std::deque<std::vector<float>>();
  const std::lock_guard lock(mutex);
  const std::vector<float>& own = kept.emplace_back(numbers);
  catalog.files.push_back(
      {.path = "made:" + name,
       .size = own.size() * sizeof(float),
       .codec = Codec::kMemory,
       .memory = reinterpret_cast<const std::byte*>(own.data())});
  return static_cast<uint32_t>(catalog.files.size() - 1);
}

}  // namespace ckpt
