// SPDX-License-Identifier: Apache-2.0
#include "lib/decoding.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <string_view>
#include <unordered_set>

namespace ckpt {

std::vector<const Tensor*> parts_of(const Decoding& made) {
  std::vector<const Tensor*> parts;
  for (const Tensor* part :
       {&made.codes, &made.scales, &made.zeros, &made.order, &made.outer})
    if (!part->name.empty()) parts.push_back(part);
  if (made.combined)
    for (const Term& term : made.combined->terms) parts.push_back(&term.tensor);
  return parts;
}

File decoded_file(std::string path, uint64_t size, Decoding decoding) {
  static std::mutex mutex;
  static auto& kept = *new std::deque<Decoding>();
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(decoding));
  return {.path = std::move(path),
          .size = size,
          .codec = Codec::kMemory,
          .packed_offset = 0,
          .packed_size = 0,
          .memory = reinterpret_cast<const std::byte*>(&kept.back()),
          .fill = std::string(kDecodedMark)};
}

const GgmlInfo* blocks_of(const Tensor& tensor, const Catalog& catalog) {
  if (tensor.pieces.empty()) return nullptr;
  const uint32_t file = tensor.pieces[0].extent.file;
  if (file >= catalog.files.size() || !is_decoded(catalog.files[file]))
    return nullptr;
  const Decoding& made = decoding_of(catalog.files[file]);
  return made.coding == Coding::kGgml ? ggml_info(made.ggml) : nullptr;
}

bool has_blocks(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
    return blocks_of(tensor, catalog) != nullptr;
  });
}

void take_stored(const Catalog& catalog, Tensor& tensor) {
  const GgmlInfo* type = blocks_of(tensor, catalog);
  if (!type) return;
  Extent extent = decoding_of(catalog.files[tensor.pieces[0].extent.file])
                      .codes.pieces.at(0)
                      .extent;
  extent.strides = {};
  tensor.dtype = DType::u8;
  tensor.pinned = DType::u8;
  tensor.shape.back() = tensor.shape.back() / type->elements * type->bytes;
  tensor.pieces = {
      {.box = Box::whole(tensor.shape), .flat = {}, .extent = extent}};
}

void take_stored(Catalog& catalog) {
  for (Tensor& tensor : catalog.tensors) take_stored(catalog, tensor);
}

std::string_view stored_type(const Tensor& tensor, const Catalog& catalog) {
  const GgmlInfo* type = blocks_of(tensor, catalog);
  return type ? type->name : name(tensor.dtype);
}

uint64_t stored_bytes(const Tensor& tensor, const Catalog& catalog) {
  if (!blocks_of(tensor, catalog)) return byte_size(tensor);
  return byte_size(
      decoding_of(catalog.files[tensor.pieces[0].extent.file]).codes);
}

std::vector<std::string_view> stored_in(const Piece& piece,
                                        const Catalog& catalog) {
  const File& file = catalog.files[piece.extent.file];
  if (!is_decoded(file)) return {file.path};
  const Decoding& made = decoding_of(file);
  std::vector<std::string_view> paths;
  for (const Tensor* part : parts_of(made))
    for (const Piece& one : part->pieces)
      paths.push_back((*made.files)[one.extent.file].path);
  return paths;
}

uint64_t file_count(const Catalog& catalog) {
  std::unordered_set<std::string_view> paths;
  for (const File& file : catalog.files)
    if (file.codec != Codec::kFill && file.codec != Codec::kMemory)
      paths.insert(file.path);
  return paths.size();
}

}  // namespace ckpt
