// SPDX-License-Identifier: Apache-2.0
// Small tensors whose values a reader needs: steps, scales, meshes.
#include <algorithm>
#include <cstring>

#include "ckpt/error.h"
#include "containers/torch/item.h"
#include "containers/torch/tensors.h"
#include "containers/torch/walk.h"
#include "lib/codec/stream.h"
#include "lib/hash/crc32.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;

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
  for (size_t at = 0; unit > 1 && at + unit <= bytes.size(); at += unit)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + unit));
}

// The record that such bytes are a part of. The last ones are those of the
// container that was opened last, which is the one that is read.
const StoredCrc* record_of(const std::vector<StoredCrc>& crcs, uint32_t file,
                           uint64_t offset, uint64_t size) {
  const auto found =
      std::find_if(crcs.rbegin(), crcs.rend(), [&](const StoredCrc& crc) {
        return crc.file == file && crc.begin <= offset && offset < crc.end &&
               size <= crc.end - offset;
      });
  return found == crcs.rend() ? nullptr : &*found;
}

// Calls `read(offset, bytes)` for a record, block by block.
template <class Read>
void check_record(const std::string& path, const StoredCrc& record,
                  const Read& read) {
  constexpr uint64_t kBlock = uint64_t{4} << 20;
  uint32_t crc = 0;
  for (uint64_t at = record.begin; at < record.end; at += kBlock) {
    const std::string block = read(at, std::min(kBlock, record.end - at));
    crc = crc32(crc, std::as_bytes(std::span(block)));
  }
  if (crc == record.crc32) return;
  throw input_error({path, {}},
                    "record {} has CRC-32 {:08x}, its bytes have {:08x}",
                    text::printable(record.record), record.crc32, crc)
      .with_hint(
          "copy or download the file again; `ckpt verify` lists all such "
          "records, and `ckpt salvage` keeps what is sound");
}

std::string read_plain(const File& file, uint64_t offset, uint64_t size) {
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

// "optimizer.state.step": the keys on the way from the root to a storage.
std::string value_of(const Document& document, Id node,
                     const std::string& path) {
  std::string name;
  try {
    visit_tree(document, document.root(), path,
               [&](const Visit& visit, bool holds) {
                 if (visit.node == node) name = join_path({}, visit.path);
                 return holds && name.empty() ? Next::kDescend : Next::kSkip;
               });
  } catch (const Error&) {
    return {};
  }
  return text::printable(name);
}

}  // namespace

std::string read_content(const Catalog& catalog, uint32_t file, uint64_t offset,
                         uint64_t size) {
  const File& from = catalog.files.at(file);
  if (size != 0)
    if (const StoredCrc* record = record_of(catalog.crcs, file, offset, size))
      check_record(from.path, *record, [&](uint64_t at, uint64_t count) {
        return read_plain(from, at, count);
      });
  return read_plain(from, offset, size);
}

Content storage_content(const Catalog& catalog, const Container& container,
                        Id node) {
  const StorageUse& use = container.storages.uses.at(node);
  const Storage& storage = container.storages.all.at(use.storage);
  try {
    std::string bytes = read_content(catalog, storage.file,
                                     storage.offset + use.begin, use.bytes);
    if (container.storages.big_endian && use.dtype)
      swap_units(bytes, info(*use.dtype).swap);
    return bytes;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    return Content(std::make_shared<const Error>(
        error.code(),
        Where{container.path,
              value_of(*container.document, node, container.path)},
        error.problem(), error.hint()));
  }
}

Content storage_content(const OpenedObject& object, Id node) {
  const Container& container = object.container;
  const StorageUse& use = container.storages.uses.at(node);
  const Storage& storage = container.storages.all.at(use.storage);
  const auto read = [&](uint64_t at, uint64_t count) {
    return object.item.read_string(at, count);
  };
  try {
    if (const StoredCrc* record =
            record_of(object.crcs, storage.file, storage.offset, storage.size))
      check_record(object.item.path(), *record, read);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    return Content(std::make_shared<const Error>(
        error.code(), Where{error.where().path, text::printable(object.name)},
        error.problem(), error.hint()));
  }
  std::string bytes = read(storage.offset + use.begin, use.bytes);
  if (container.storages.big_endian && use.dtype)
    swap_units(bytes, info(*use.dtype).swap);
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
  std::string bytes =
      read_content(catalog, ref.extent.file, ref.extent.offset, span);
  if (!ref.extent.strides.empty()) bytes = gather(bytes, ref, item, count);
  if (ref.transform & kSwapBytes) swap_units(bytes, info(ref.dtype).swap);
  return bytes;
}

std::optional<double> read_number(const Catalog& catalog, DType dtype,
                                  const Piece& piece) {
  if (piece.transform != kNoTransform) return std::nullopt;
  const auto as = [&]<class T>(T value) {
    const std::string bytes = read_content(catalog, piece.extent.file,
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
