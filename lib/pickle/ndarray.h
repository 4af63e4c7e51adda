// SPDX-License-Identifier: Apache-2.0
// numpy arrays and scalars as their pickles describe them.
//
//   scalar(dtype, bytes)
//   _reconstruct(ndarray, (0,), b"b") + state
//     (1, shape, dtype, fortran_order, bytes, or a list of objects)
//   dtype("f4", False, True) + state (3, "<" | ">" | "|", subarray, names, …)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/pickle/value.h"

namespace ckpt::pickle {

struct NumpyDtype {
  std::string code;         // "f4"
  std::string order = "|";  // as stored
  bool plain = true;        // no record, no subarray
};
std::optional<NumpyDtype> numpy_dtype(const Document& document, Id id);

struct NumpyArray {
  std::optional<NumpyDtype> dtype;
  std::optional<std::vector<int64_t>> shape;  // empty: a scalar
  bool fortran = false;
  Id data = kNoId;  // kBytes, or a list of objects
};
// Reads a kCall of scalar or _reconstruct; nullopt for other values.
std::optional<NumpyArray> numpy_array(const Document& document, Id id);

// The bytes of a number or an array of numbers, interpreted; nullopt if the
// bytes don't fit the shape, or the elements are not plain numbers.
struct Numbers {
  std::string type;  // numpy's dtype.str: "<f4", "|b1"
  char kind = 0;     // f i u b c
  size_t size = 0;   // bytes of one
  bool big_endian = false;
  std::string bytes;  // row-major
};
std::optional<Numbers> numbers(const Document& document,
                               const NumpyArray& array);

}  // namespace ckpt::pickle
