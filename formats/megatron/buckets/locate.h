// SPDX-License-Identifier: Apache-2.0
// Pieces that are parts of archives: a stored chunk of a bucket may hold
// several boxes (gate and up of a gated layer). Until its archive is located,
// such a piece has the archive's offset plus the bytes of payload before it.
// That is inside the archive and identifies it.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

class BucketChunks {
 public:
  // Adds the chunks of one bucket tensor, in its elements. Throws input_error
  // for chunks that overlap, or archives too small for their content.
  void add(const Catalog& catalog, const Tensor& tensor);

  struct Cut {
    FlatRange range;  // of the bucket
    Extent extent;
    uint8_t transform = kNoTransform;
  };
  // What stores elements [begin, end) of an added tensor, chunk by chunk.
  std::vector<Cut> cut(const Tensor& tensor, uint64_t begin,
                       uint64_t end) const;

  // Makes ckpt::locate find these archives, too.
  void install(Catalog& catalog) &&;

 private:
  struct Chunk {
    uint64_t begin = 0;  // elements of the bucket
    uint64_t end = 0;
    Piece piece;  // as the reader made it
  };
  struct Source {
    DType dtype = DType::f32;
    Shape shape;
    std::vector<Chunk> chunks;  // by begin
  };
  using Sources = std::unordered_map<std::string, Source>;
  // An archive and its owner.
  struct Archive {
    uint32_t file = 0;
    uint64_t offset = 0;
    uint64_t size = 0;
    const Source* source = nullptr;
    const Piece* piece = nullptr;
    auto key() const { return std::pair(file, offset); }
  };
  static std::vector<Archive> archives_of(const Sources& sources,
                                          const Catalog& catalog);
  static void locate(const Sources& sources, Catalog& catalog,
                     const ArchiveOpener& inner);

  Sources sources_;  // by name
};

}  // namespace ckpt::megatron
