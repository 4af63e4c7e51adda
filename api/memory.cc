// SPDX-License-Identifier: Apache-2.0
#include "api/memory.h"

#include <unordered_map>

namespace ckpt::library {

uint32_t add_memory(Catalog& catalog, std::span<const std::byte> bytes) {
  catalog.files.push_back({.path = "(memory)",
                           .size = bytes.size(),
                           .codec = Codec::kMemory,
                           .memory = bytes.data()});
  return static_cast<uint32_t>(catalog.files.size() - 1);
}

void check_shard(const ShardedTensor& shard) {
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
