// SPDX-License-Identifier: Apache-2.0
#include "tests/support/materialise.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "ckpt/error.h"
#include "lib/codec/stream.h"
#include "lib/hash/crc32.h"
#include "lib/io/file.h"
#include "tests/support/golden.h"

namespace ckpt::test {
namespace {

std::string read_range(const File& file, uint64_t offset, uint64_t size) {
  if (size == 0) return {};
  if (file.codec == Codec::kFill) {
    std::string bytes;
    for (uint64_t i = 0; i < size; ++i)
      bytes += file.fill.at((offset + i) % file.fill.size());
    return bytes;
  }
  auto handle = std::make_shared<io::Handle>(io::Handle::open_read(file.path));
  if (file.codec == Codec::kRaw) return handle->read_string(offset, size);
  std::string bytes(size, '\0');
  codec::Stream(handle, file)
      .read(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

Dims byte_strides(const Extent& extent, const Shape& shape, uint64_t item) {
  if (!extent.strides.empty() || shape.empty()) return extent.strides;
  Dims strides = row_major_strides(shape);
  for (uint64_t& stride : strides) stride *= item;
  return strides;
}

uint64_t dot(const Dims& index, const Dims& strides) {
  uint64_t sum = 0;
  for (size_t d = 0; d < index.size(); ++d) sum += index[d] * strides[d];
  return sum;
}

// The index of element `at` in the row-major order of `shape`.
Dims unravel(uint64_t at, const Shape& shape) {
  Dims index(shape.size(), 0);
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = at % shape[d];
    at /= shape[d];
  }
  return index;
}

// Where the elements of a piece are: in the tensor, and in the file.
struct Element {
  uint64_t in_tensor = 0;  // bytes
  uint64_t in_file = 0;
};

std::vector<Element> elements(const Tensor& tensor, const Piece& piece) {
  const uint64_t item = element_size(tensor.dtype);
  Dims whole = row_major_strides(tensor.shape);
  const FlatRange range = piece.flat.value_or(FlatRange{0, volume(piece.box)});
  const Dims strides = byte_strides(piece.extent, piece.box.shape, item);
  std::vector<Element> result;
  for (uint64_t i = range.begin; i < range.end; ++i) {
    Dims index = unravel(i, piece.box.shape);
    const uint64_t in_file =
        piece.flat ? (i - range.begin) * item : dot(index, strides);
    for (size_t d = 0; d < index.size(); ++d) index[d] += piece.box.offset[d];
    result.push_back({dot(index, whole) * item, piece.extent.offset + in_file});
  }
  return result;
}

void transform(std::string& element, const Piece& piece, DType dtype) {
  const uint32_t swap = info(dtype).swap;
  if (piece.transform & kSwapBytes)
    for (size_t at = 0; at + swap <= element.size(); at += swap)
      std::reverse(element.begin() + at, element.begin() + at + swap);
  // The sign is the last bit of the last byte.
  if (piece.transform & kNegate)
    for (size_t at = 0; at + swap <= element.size(); at += swap)
      element[at + swap - 1] ^= '\x80';
  if (piece.transform & kConjugate) element.back() ^= '\x80';
}

std::string packed_content(const Catalog& catalog, const Tensor& tensor) {
  const Extent& extent = tensor.pieces.at(0).extent;
  return read_range(catalog.files.at(extent.file), extent.offset,
                    byte_size(tensor));
}

// A file being written, and which of its bytes have been.
struct Output {
  std::string bytes;
  std::vector<bool> written;

  void put(uint64_t offset, std::string_view part, bool again) {
    for (size_t i = 0; i < part.size(); ++i) {
      if (written.at(offset + i) && !again)
        throw bug_error({}, "byte {} is covered twice", offset + i);
      written[offset + i] = true;
      bytes[offset + i] = part[i];
    }
  }
};

std::string crc_of(const Output& output, const LateCrc& late) {
  const auto bytes = std::as_bytes(std::span(output.bytes))
                         .subspan(late.begin, late.end - late.begin);
  const uint32_t crc = crc32(0, bytes);
  std::string text(4, '\0');
  for (size_t i = 0; i < 4; ++i) text[i] = static_cast<char>(crc >> (8 * i));
  return text;
}

}  // namespace

std::string content(const Catalog& catalog, const Tensor& tensor) {
  const uint64_t item = element_size(tensor.dtype);
  if (item == 0) return packed_content(catalog, tensor);
  std::string bytes(byte_size(tensor), '\0');
  std::vector<bool> found(bytes.size(), false);
  for (const Piece& piece : tensor.pieces) {
    const auto all = elements(tensor, piece);
    if (all.empty()) continue;
    uint64_t end = 0;
    uint64_t begin = UINT64_MAX;
    for (const Element& element : all) {
      begin = std::min(begin, element.in_file);
      end = std::max(end, element.in_file + item);
    }
    const std::string source =
        read_range(catalog.files.at(piece.extent.file), begin, end - begin);
    for (const Element& element : all) {
      std::string value = source.substr(element.in_file - begin, item);
      transform(value, piece, tensor.dtype);
      bytes.replace(element.in_tensor, item, value);
      found[element.in_tensor] = true;
    }
  }
  for (size_t at = 0; at < found.size(); at += item)
    if (!found[at])
      throw bug_error({{}, tensor.name}, "element {} is in no piece",
                      at / item);
  return bytes;
}

void materialise(const Catalog& source, const Target& target,
                 const std::string& destination) {
  std::vector<Output> outputs;
  for (const TargetFile& file : target.files) {
    Output& output = outputs.emplace_back();
    output.bytes.assign(file.size, '\0');
    output.written.assign(file.size, false);
    if (!file.copy_of.empty()) output.put(0, read_all(file.copy_of), false);
    for (const Literal& literal : file.literals)
      output.put(literal.offset, literal.bytes, false);
    for (const CarriedRange& range : file.carried)
      output.put(range.offset,
                 read_range(source.files.at(range.source_file),
                            range.source_offset, range.size),
                 false);
    for (const SharedLiteral& literal : file.shared)
      output.put(literal.offset, *literal.bytes, false);
  }
  // Tied tensors are at the same place and are written again.
  std::set<std::pair<uint32_t, uint64_t>> ties;
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    const std::string bytes = content(source, source.tensors[i]);
    const Tensor& tensor = target.catalog.tensors.at(i);
    const uint64_t item = element_size(tensor.dtype);
    for (const Piece& piece : tensor.pieces) {
      Output& output = outputs.at(piece.extent.file);
      const bool again =
          tensor.tie != 0 &&
          !ties.emplace(piece.extent.file, piece.extent.offset).second;
      if (item == 0) {
        output.put(piece.extent.offset, bytes, again);
        continue;
      }
      for (const Element& element : elements(tensor, piece))
        output.put(element.in_file, bytes.substr(element.in_tensor, item),
                   again);
    }
  }
  for (size_t f = 0; f < outputs.size(); ++f) {
    Output& output = outputs[f];
    for (const LateCrc& late : target.files[f].crcs)
      for (const uint64_t at : late.at)
        output.put(at, crc_of(output, late), true);  // a zero in a header
    const auto hole = std::ranges::find(output.written, false);
    if (hole != output.written.end())
      throw bug_error({target.files[f].path, {}}, "byte {} is not covered",
                      hole - output.written.begin());
    const std::string& name = target.files[f].path;
    const std::string path =
        name.empty() ? destination : io::join(destination, name);
    std::filesystem::create_directories(io::parent(path));
    std::ofstream(path, std::ios::binary) << output.bytes;
  }
}

}  // namespace ckpt::test
