// SPDX-License-Identifier: Apache-2.0
#include "api/memory.h"

#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace ckpt::library {

uint32_t add_memory(Catalog& catalog, std::span<const std::byte> bytes) {
  catalog.files.push_back({.path = "(memory)",
                           .size = bytes.size(),
                           .codec = Codec::kMemory,
                           .memory = bytes.data()});
  return static_cast<uint32_t>(catalog.files.size() - 1);
}

namespace {

bool exists(DType dtype) {
  return static_cast<size_t>(dtype) < all_dtypes().size();
}

}  // namespace

void check_catalog(const Catalog& catalog) {
  std::unordered_set<std::string_view> names;
  for (const Tensor& tensor : catalog.tensors) {
    const Where where{catalog.path, tensor.name};
    if (!names.insert(tensor.name).second)
      throw usage_error(where, "the catalog has two tensors of this name");
    if (!exists(tensor.dtype))
      throw usage_error(where, "there is no dtype {}",
                        static_cast<int>(tensor.dtype));
    if (!byte_size(tensor.dtype, tensor.shape))
      throw usage_error(where, "{} {} is beyond 64 bits of bytes",
                        name(tensor.dtype), to_string(tensor.shape));
    for (const Piece& piece : tensor.pieces)
      if (piece.extent.file >= catalog.files.size())
        throw usage_error(where, "a piece lies in file {} of {}",
                          piece.extent.file, catalog.files.size());
  }
}

void check_shard(const ShardedTensor& shard) {
  if (!exists(shard.dtype))
    throw usage_error({{}, shard.name}, "there is no dtype {}",
                      static_cast<int>(shard.dtype));
  if (!byte_size(shard.dtype, shard.shape))
    throw usage_error({{}, shard.name}, "{} {} is beyond 64 bits of bytes",
                      name(shard.dtype), to_string(shard.shape));
  if (!inside(shard.box, shard.shape))
    throw usage_error({{}, shard.name}, "no box at {} of shape {} in {}",
                      to_string(shard.box.offset), to_string(shard.box.shape),
                      to_string(shard.shape));
  const auto bytes = byte_size(shard.dtype, shard.box.shape);
  if (bytes != shard.bytes.size())
    throw usage_error({{}, shard.name}, "{} {} needs {} bytes, given are {}",
                      name(shard.dtype), to_string(shard.box.shape),
                      bytes.value_or(0), shard.bytes.size());
}

Catalog catalog_of(std::span<const ShardedTensor> shards) {
  Catalog catalog;
  catalog.format = "memory";
  catalog.path = "(memory)";
  std::unordered_map<std::string, size_t> index;
  for (const ShardedTensor& shard : shards) {
    check_shard(shard);
    const auto [at, fresh] = index.emplace(shard.name, catalog.tensors.size());
    if (fresh)
      catalog.tensors.push_back({.name = shard.name,
                                 .dtype = shard.dtype,
                                 .shape = shard.shape,
                                 .tp = shard.tp});
    Tensor& tensor = catalog.tensors[at->second];
    if (tensor.dtype != shard.dtype || tensor.shape != shard.shape)
      throw unfaithful_error({{}, shard.name},
                             "one shard says {} {}, another {} {}",
                             name(tensor.dtype), to_string(tensor.shape),
                             name(shard.dtype), to_string(shard.shape));
    tensor.pieces.push_back(
        {.box = shard.box,
         .flat = {},
         .extent = {.offset = 0,
                    .strides = {},
                    .file = add_memory(catalog, shard.bytes)}});
  }
  return catalog;
}

}  // namespace ckpt::library
