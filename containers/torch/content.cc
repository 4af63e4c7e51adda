// SPDX-License-Identifier: Apache-2.0
// Small tensors whose values a reader needs: steps, scales, meshes.
#include <algorithm>
#include <cstring>

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "lib/codec/stream.h"
#include "lib/io/file.h"

namespace ckpt::torch {
namespace {

// A tensor whose elements span more than this is not small.
constexpr uint64_t kMaxSpan = uint64_t{64} << 20;

// Bytes from the first element to the end of the last one.
uint64_t span_of(const TensorRef& ref, uint64_t item) {
  uint64_t span = item;
  for (size_t d = 0; d < ref.extent.strides.size(); ++d)
    span += (ref.shape[d] - 1) * ref.extent.strides[d];
  return span;
}

// The elements at `strides`, in row-major order.
std::string gather(const std::string& bytes, const TensorRef& ref,
                   uint64_t item, uint64_t count) {
  std::string packed;
  packed.reserve(count * item);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t rest = i;
    uint64_t at = 0;
    for (size_t d = ref.shape.size(); d-- > 0;) {
      at += rest % ref.shape[d] * ref.extent.strides[d];
      rest /= ref.shape[d];
    }
    packed.append(bytes, at, item);
  }
  return packed;
}

void swap_units(std::string& bytes, uint32_t unit) {
  for (size_t at = 0; at + unit <= bytes.size(); at += unit)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + unit));
}

}  // namespace

std::string read_content(const File& file, uint64_t offset, uint64_t size) {
  if (size == 0) return {};
  if (file.codec == Codec::kFill) {
    std::string bytes(size, '\0');
    for (uint64_t i = 0; i < size && !file.fill.empty(); ++i)
      bytes[i] = file.fill[(offset + i) % file.fill.size()];
    return bytes;
  }
  auto handle = std::make_shared<io::Handle>(io::Handle::open_read(file.path));
  if (file.codec == Codec::kRaw) return handle->read_string(offset, size);
  std::string bytes(size, '\0');
  codec::Stream reader(std::move(handle), file);
  reader.read(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::string read_content(const Catalog& catalog, const TensorRef& ref,
                         uint64_t limit) {
  const File& file = catalog.files.at(ref.extent.file);
  const uint64_t item = element_size(ref.dtype);
  const uint64_t count = element_count(ref.shape).value_or(UINT64_MAX);
  const auto size = checked_mul(count, item);
  if (!size || *size > limit)
    throw input_error({file.path, {}},
                      "a tensor of shape {}, where at most {} bytes are "
                      "expected",
                      to_string(ref.shape), limit);
  if (count == 0) return {};
  const uint64_t span = ref.extent.strides.empty() ? *size : span_of(ref, item);
  if (span > std::max(kMaxSpan, limit))
    throw input_error({file.path, {}},
                      "a tensor of {} bytes is spread over {} bytes", *size,
                      span);
  std::string bytes = read_content(file, ref.extent.offset, span);
  if (!ref.extent.strides.empty()) bytes = gather(bytes, ref, item, count);
  if (ref.transform & kSwapBytes) swap_units(bytes, info(ref.dtype).swap);
  return bytes;
}

std::optional<double> read_number(const Catalog& catalog, DType dtype,
                                  const Piece& piece) {
  if (piece.transform != kNoTransform) return std::nullopt;
  const auto as = [&]<class T>(T value) {
    const std::string bytes = read_content(catalog.files.at(piece.extent.file),
                                           piece.extent.offset, sizeof value);
    std::memcpy(&value, bytes.data(), std::min(sizeof value, bytes.size()));
    return static_cast<double>(value);
  };
  if (dtype == DType::f32) return as(float{});
  if (dtype == DType::f64) return as(double{});
  if (dtype == DType::i64) return as(int64_t{});
  if (dtype == DType::i32) return as(int32_t{});
  return std::nullopt;
}

std::vector<int64_t> read_ints(const Catalog& catalog, const TensorRef& ref) {
  const std::string bytes = read_content(catalog, ref);
  const auto convert = [&]<class T>(T) {
    std::vector<int64_t> values;
    for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof(T));
      values.push_back(static_cast<int64_t>(value));
    }
    return values;
  };
  switch (ref.dtype) {
    case DType::i64:
      return convert(int64_t{});
    case DType::i32:
      return convert(int32_t{});
    case DType::i16:
      return convert(int16_t{});
    case DType::i8:
      return convert(int8_t{});
    case DType::u8:
    case DType::bool_:
      return convert(uint8_t{});
    default:
      throw input_error({catalog.files.at(ref.extent.file).path, {}},
                        "a tensor of {}, where integers are expected",
                        name(ref.dtype));
  }
}

}  // namespace ckpt::torch
