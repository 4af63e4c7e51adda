// Writes a Target to disk in the plainest way, so that what a Writer laid out
// can be looked at without the engine. Tensors are paired by their order.
#pragma once

#include <cstring>
#include <fstream>
#include <string>

#include "ckpt/layout.h"
#include "lib/io/file.h"
#include "tests/support/golden.h"

namespace ckpt::test {

// The bytes of a tensor that lies in one piece.
inline std::string content(const Catalog& catalog, const Tensor& tensor) {
  const Extent& extent = tensor.pieces.at(0).extent;
  return io::Handle::open_read(catalog.files.at(extent.file).path)
      .read_string(extent.offset, byte_size(tensor));
}

inline void write_target(const Catalog& source, const Target& target,
                         const std::string& destination) {
  std::vector<std::string> files;
  for (const TargetFile& file : target.files) {
    std::string& bytes =
        files.emplace_back(file.copy_of.empty() ? std::string(file.size, '\xee')
                                                : read_all(file.copy_of));
    for (const Literal& literal : file.literals)
      bytes.replace(literal.offset, literal.bytes.size(), literal.bytes);
  }
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    const std::string bytes = content(source, source.tensors[i]);
    const Extent& extent = target.catalog.tensors.at(i).pieces.at(0).extent;
    files.at(extent.file).replace(extent.offset, bytes.size(), bytes);
  }
  for (size_t f = 0; f < files.size(); ++f) {
    const std::string& name = target.files[f].path;
    std::ofstream(name.empty() ? destination : destination + "/" + name,
                  std::ios::binary)
        << files[f];
  }
}

}  // namespace ckpt::test
