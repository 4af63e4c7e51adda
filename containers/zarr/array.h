// SPDX-License-Identifier: Apache-2.0
// A zarr v2 array: a directory with a description and a file for each chunk.
//
//   <directory>/.zarray     JSON: shape, chunks, dtype, compressor, order …
//   <directory>/0.0 0.1 …   chunk (i, j) holds the elements from
//                           (i * chunks[0], j * chunks[1]) on, row-major
//                           ("order": "F": column-major), maybe compressed
//
// All chunks have the same size: one that extends past the array's edge is
// stored whole, and what is outside means nothing. A chunk without a file holds
// the fill value. With "dimension_separator": "/" chunks are at 0/0, 0/1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ckpt/catalog.h"

namespace ckpt::zarr {

struct Array {
  std::string directory;
  DType dtype = DType::f32;
  bool big_endian = false;
  Shape shape;
  Dims chunks;           // elements of a chunk in each dimension
  bool fortran = false;  // column-major inside a chunk
  char separator = '.';
  Codec codec = Codec::kRaw;
  std::optional<std::string> fill;  // one element, little-endian; none: null
  std::optional<Delta> delta;       // the only filter supported
  // Why ckpt can't read its chunks ("compressor lzma"); else empty.
  std::string unreadable;
};

// True if the directory has a .zarray that is not empty. (The locks of
// Megatron's flattened writes are empty ones.)
bool is_array(const std::string& directory);

// Reads and checks .zarray, but no chunk. Throws input_error, and an
// unfaithful_error for dtypes that no tensor has.
Array read_array(const std::string& directory);

// The content of .zarray as zarr-python and Megatron write it: uncompressed,
// row-major, little-endian, no fill value.
std::string describe(DType dtype, const Shape& shape, const Dims& chunks);

// "0.3.1", or "0" for a 0-d array.
std::string chunk_name(const Dims& index, char separator);

// Chunks along each dimension.
Dims grid_of(const Shape& shape, const Dims& chunks);

}  // namespace ckpt::zarr
