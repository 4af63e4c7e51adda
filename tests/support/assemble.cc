// SPDX-License-Identifier: Apache-2.0
#include "tests/support/assemble.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

#include "lib/hash/crc32.h"
#include "tests/support/golden.h"

namespace ckpt::test {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what);
}

// Calls f(index in the tensor, byte offset in the file) for every element.
template <class F>
void each_element(const Tensor& tensor, const Piece& piece, F f) {
  const uint64_t size = element_size(tensor.dtype);
  const Dims global = row_major_strides(tensor.shape);
  Dims strides = piece.extent.strides;
  if (strides.empty()) {
    strides = row_major_strides(piece.box.shape);
    for (uint64_t& stride : strides) stride *= size;
  }
  const uint64_t count = volume(piece.box);
  const uint64_t begin = piece.flat ? piece.flat->begin : 0;
  const uint64_t end = piece.flat ? piece.flat->end : count;
  for (uint64_t i = begin; i < end; ++i) {
    uint64_t rest = i, index = 0, offset = piece.extent.offset;
    for (size_t d = piece.box.shape.size(); d-- > 0;) {
      const uint64_t at = rest % piece.box.shape[d];
      rest /= piece.box.shape[d];
      index += (piece.box.offset[d] + at) * global[d];
      if (!piece.flat) offset += at * strides[d];
    }
    if (piece.flat) offset += (i - begin) * size;
    f(index, offset);
  }
}

using Key = std::pair<std::vector<uint64_t>, std::pair<uint64_t, uint64_t>>;

Key key_of(const Piece& piece) {
  Key key;
  for (const uint64_t x : piece.box.offset) key.first.push_back(x);
  for (const uint64_t x : piece.box.shape) key.first.push_back(x);
  if (piece.flat) key.second = {piece.flat->begin, piece.flat->end};
  return key;
}

void claim(std::string& covered, uint64_t offset, uint64_t size,
           const std::string& path) {
  if (offset > covered.size() || size > covered.size() - offset)
    fail(path + ": bytes beyond the end");
  for (uint64_t i = offset; i < offset + size; ++i)
    if (covered[i]++ != 0) fail(path + ": a byte is written twice");
}

}  // namespace

std::string assemble(const Catalog& catalog, const Tensor& tensor) {
  const uint64_t size = element_size(tensor.dtype);
  std::string bytes(byte_size(tensor), '\0');
  std::string covered(size == 0 ? 0 : bytes.size() / size, 0);
  std::map<uint32_t, std::string> files;
  std::map<Key, bool> seen;
  for (const Piece& piece : tensor.pieces) {
    std::string& file = files[piece.extent.file];
    if (file.empty()) file = read_all(catalog.files[piece.extent.file].path);
    const bool replica = !seen.emplace(key_of(piece), true).second;
    each_element(tensor, piece, [&](uint64_t index, uint64_t offset) {
      const std::string element = file.substr(offset, size);
      if (element.size() != size) fail(tensor.name + ": beyond its file");
      if (!replica) {
        if (covered.at(index)++ != 0) fail(tensor.name + ": overlap");
        bytes.replace(index * size, size, element);
      } else if (bytes.compare(index * size, size, element) != 0) {
        fail(tensor.name + ": replicas differ");
      }
    });
  }
  if (covered.find('\0') != covered.npos) fail(tensor.name + ": a hole");
  return bytes;
}

std::vector<std::string> fill(const Catalog& source, const Target& target) {
  std::vector<std::string> files, covered;
  for (const TargetFile& file : target.files) {
    files.emplace_back(file.copy_of.empty() ? std::string(file.size, '\xee')
                                            : read_all(file.copy_of));
    if (files.back().size() != file.size) fail(file.path + ": size");
    covered.emplace_back(file.size, file.copy_of.empty() ? 0 : 1);
    for (const Literal& literal : file.literals) {
      claim(covered.back(), literal.offset, literal.bytes.size(), file.path);
      files.back().replace(literal.offset, literal.bytes.size(), literal.bytes);
    }
    for (const SharedLiteral& literal : file.shared) {
      const std::string& bytes = *literal.bytes;
      claim(covered.back(), literal.offset, bytes.size(), file.path);
      files.back().replace(literal.offset, bytes.size(), bytes);
    }
  }
  for (const Tensor& tensor : target.catalog.tensors) {
    const Tensor* from = source.find(tensor.name);
    if (from == nullptr) fail(tensor.name + ": not in the source");
    const std::string bytes = assemble(source, *from);
    const uint64_t size = element_size(tensor.dtype);
    for (const Piece& piece : tensor.pieces) {
      const uint32_t f = piece.extent.file;
      each_element(tensor, piece, [&](uint64_t index, uint64_t offset) {
        claim(covered.at(f), offset, size, target.files[f].path);
        files[f].replace(offset, size, bytes, index * size, size);
      });
    }
  }
  for (size_t f = 0; f < files.size(); ++f) {
    for (const LateCrc& crc : target.files[f].crcs) {
      const std::string_view range =
          std::string_view(files[f]).substr(crc.begin, crc.end - crc.begin);
      const uint32_t value = crc32(0, std::as_bytes(std::span(range)));
      // Overwrites the zeros that the literals have there.
      for (const uint64_t at : crc.at) {
        for (int i = 0; i < 4; ++i)
          files[f][at + i] = static_cast<char>(value >> (8 * i));
      }
    }
    if (covered[f].find('\0') != covered[f].npos)
      fail(target.files[f].path + ": a byte is not written");
  }
  return files;
}

void write_files(const Catalog& source, const Target& target,
                 const std::string& directory) {
  const std::vector<std::string> files = fill(source, target);
  for (size_t f = 0; f < files.size(); ++f) {
    const std::string path = directory + "/" + target.files[f].path;
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << files[f];
  }
}

}  // namespace ckpt::test
