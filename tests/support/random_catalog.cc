// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_catalog.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace ckpt::test {
namespace {

uint64_t bytes_of(const Tensor& tensor, const Piece& piece) {
  const uint64_t count =
      piece.flat ? piece.flat->end - piece.flat->begin : volume(piece.box);
  return count * element_size(tensor.dtype);
}

// Cut points of [0, n): even chunks (with a short or empty tail) or random.
std::vector<uint64_t> random_cuts(Random& random, uint64_t n) {
  const uint64_t parts = 1 + random() % 4;
  std::vector<uint64_t> cuts{0, n};
  const bool even = random() % 2;
  const uint64_t chunk = (n + parts - 1) / parts;
  for (uint64_t i = 1; i < parts; ++i)
    cuts.push_back(even ? std::min(n, i * chunk) : random() % (n + 1));
  std::ranges::sort(cuts);
  return cuts;
}

}  // namespace

std::vector<std::byte> content_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(byte_size(tensor));
  uint64_t state = std::hash<std::string>()(tensor.name);
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

Tensor random_tensor(Random& random, const std::string& name) {
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::u8, DType::i64,
                              DType::c128};
  Tensor tensor;
  tensor.name = name;
  tensor.dtype = kTypes[random() % std::size(kTypes)];
  const size_t rank = random() % 5;
  for (size_t d = 0; d < rank; ++d)
    tensor.shape.push_back(random() % 20 == 0 ? 0 : 1 + random() % 9);
  if (rank == 2 && random() % 4 == 0) tensor.shape = Shape{40, 700};
  return tensor;
}

std::vector<Piece> random_pieces(Random& random, const Shape& shape,
                                 bool replicas) {
  std::vector<Box> boxes{Box::whole(shape)};
  const size_t splits = shape.empty() ? 0 : random() % 3;
  for (size_t i = 0; i < splits; ++i) {
    const size_t d = random() % shape.size();
    const auto cuts = random_cuts(random, shape[d]);
    std::vector<Box> finer;
    for (const Box& box : boxes)
      for (size_t c = 0; c + 1 < cuts.size(); ++c) {
        Box part = box;
        const uint64_t begin = std::max(cuts[c], box.offset[d]);
        const uint64_t end =
            std::min(cuts[c + 1], box.offset[d] + box.shape[d]);
        part.offset[d] = std::min(begin, shape[d]);
        part.shape[d] = end > begin ? end - begin : 0;
        finer.push_back(part);
      }
    boxes = std::move(finer);
  }
  const bool flat = random() % 4 == 0;
  std::vector<Piece> pieces;
  for (const Box& box : boxes) {
    if (!flat) {
      pieces.push_back({.box = box, .flat = {}, .extent = {}});
      continue;
    }
    const auto cuts = random_cuts(random, volume(box));
    for (size_t c = 0; c + 1 < cuts.size(); ++c)
      pieces.push_back(
          {.box = box, .flat = FlatRange{cuts[c], cuts[c + 1]}, .extent = {}});
  }
  if (replicas) {
    const size_t n = pieces.size();
    for (size_t i = 0; i < n; ++i)
      if (random() % 3 == 0) pieces.push_back(pieces[i]);
  }
  return pieces;
}

void place_randomly(Random& random, Catalog& catalog, uint32_t files,
                    bool gaps) {
  std::vector<std::pair<Tensor*, Piece*>> order;
  for (Tensor& tensor : catalog.tensors)
    for (Piece& piece : tensor.pieces) order.emplace_back(&tensor, &piece);
  std::ranges::shuffle(order, random);
  catalog.files.assign(files, {});
  for (auto& [tensor, piece] : order) {
    const auto f = static_cast<uint32_t>(random() % files);
    if (gaps) catalog.files[f].size += random() % 50;
    piece->extent = {.offset = catalog.files[f].size, .strides = {}, .file = f};
    catalog.files[f].size += bytes_of(*tensor, *piece);
  }
}

std::vector<std::byte> piece_content(const Tensor& tensor, const Piece& piece) {
  const std::vector<std::byte> all = content_of(tensor);
  const uint64_t element = element_size(tensor.dtype);
  const Shape& space = tensor.grid.empty() ? tensor.shape : tensor.grid;
  const Dims strides = row_major_strides(space);
  const uint64_t n = volume(piece.box);
  const uint64_t begin = piece.flat ? piece.flat->begin : 0;
  const uint64_t end = piece.flat ? piece.flat->end : n;
  std::vector<std::byte> bytes;
  for (uint64_t i = begin; i < end; ++i) {
    uint64_t rest = i, linear = 0;
    for (size_t d = space.size(); d-- > 0;) {
      linear += (piece.box.offset[d] + rest % piece.box.shape[d]) * strides[d];
      rest /= piece.box.shape[d];
    }
    const auto from =
        all.begin() + static_cast<std::ptrdiff_t>(linear * element);
    bytes.insert(bytes.end(), from,
                 from + static_cast<std::ptrdiff_t>(element));
  }
  return bytes;
}

std::vector<std::vector<std::byte>> files_of(const Catalog& catalog) {
  std::vector<std::vector<std::byte>> files;
  for (const File& file : catalog.files)
    files.emplace_back(file.size, std::byte{0xEE});
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces) {
      const auto bytes = piece_content(tensor, piece);
      if (!bytes.empty())
        std::memcpy(files[piece.extent.file].data() + piece.extent.offset,
                    bytes.data(), bytes.size());
    }
  return files;
}

}  // namespace ckpt::test
