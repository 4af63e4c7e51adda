// SPDX-License-Identifier: Apache-2.0
// A zarr array, v2 or v3: a description and a value for each chunk, as files of
// a directory or as entries of a database (containers/ocdbt).
//
//   <directory>/.zarray     JSON: shape, chunks, dtype, compressor, order …
//   <directory>/0.0 0.1 …   chunk (i, j) holds the elements from
//                           (i * chunks[0], j * chunks[1]) on, row-major
//                           ("order": "F": column-major), maybe compressed
//
// All chunks have the same size: one that extends past the array's edge is
// stored whole, and what is outside means nothing. A chunk without a file holds
// the fill value. With "dimension_separator": "/" chunks are at 0/0, 0/1.
//
//   <directory>/zarr.json       v3: the same in other words
//   <directory>/c/0/0 c/0/1 …   chunks; or shards, each of several chunks with
//                               an index of their places at its end
//
// Rules: the zarr specifications, v2 and v3.0, with its codec sharding_indexed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "containers/ocdbt/database.h"

namespace ckpt::zarr {

struct Array {
  std::string directory;
  DType dtype = DType::f32;
  bool big_endian = false;
  Shape shape;
  Dims chunks;           // elements of a chunk in each dimension
  bool fortran = false;  // column-major inside a chunk
  char separator = '.';
  std::string first;       // of a chunk's name, before its numbers: "c" in v3
  bool sharded = false;    // a stored chunk is a shard, of several
  Dims inner;              // elements of each of those
  bool index_sum = false;  // a CRC-32C ends the shard's index
  bool index_at_start = false;  // of the shard
  Codec codec = Codec::kRaw;
  std::optional<std::string> fill;  // one element, little-endian; none: null
  std::optional<Delta> delta;       // the only filter supported
  // Why ckpt can't read its chunks ("compressor lzma"); else empty.
  std::string unreadable;
  // Where the chunks are, if not in the directory: keys that begin with
  // `key`. Outlives the array.
  const ocdbt::Database* database = nullptr;
  std::string key;
};

// True if the directory has a .zarray that is not empty. (The locks of
// Megatron's flattened writes are empty ones.)
bool is_array(const std::string& directory);

// Reads and checks .zarray, but no chunk. Throws input_error, and an
// unfaithful_error for dtypes that no tensor has.
Array read_array(const std::string& directory);

// The same of v3.
bool is_array3(const std::string& directory);
Array read_array3(const std::string& directory);

// The same of a description's text; `path` is for messages.
Array parse_array(std::string_view text, const std::string& path);
Array parse_array3(std::string_view text, const std::string& path);

// The content of .zarray as zarr-python and Megatron write it: uncompressed,
// row-major, little-endian, no fill value.
std::string describe(DType dtype, const Shape& shape, const Dims& chunks);

// "0.3.1", or "0" for a 0-d array.
std::string chunk_name(const Dims& index, char separator);

// Chunks along each dimension.
Dims grid_of(const Shape& shape, const Dims& chunks);

}  // namespace ckpt::zarr
