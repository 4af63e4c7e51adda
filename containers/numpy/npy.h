// SPDX-License-Identifier: Apache-2.0
// One array of NumPy's, as numpy.save writes it: a .npy file, or a member of an
// .npz archive.
//
//   0          6       8           10 (12)
//   | \x93NUMPY | 1 0  | u16 length | header … \n | elements |
//               | 2 0, 3 0: u32     |
//
// The header is Python's spelling of a dict, padded with spaces:
//
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
//
// It is parsed as what numpy writes and never evaluated.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/error.h"

namespace ckpt::numpy {

inline constexpr std::string_view kMagic = "\x93NUMPY";

struct Array {
  DType dtype = DType::f32;
  bool big_endian = false;
  Shape shape;
  Dims strides;        // as Extent::strides: empty if elements are row-major
  uint64_t begin = 0;  // of the elements
  uint64_t end = 0;
};

// Bytes [offset, offset + count), which are below the size given.
using ReadBytes = std::function<std::string(uint64_t offset, uint64_t count)>;

// Reads the header of an array in `size` bytes. Throws input_error for a header
// that numpy does not read either and for elements past the end;
// unfaithful_error for what no tensor has: objects, records, text, raw bytes.
Array read_array(uint64_t size, const ReadBytes& read, const Where& where);

// False for a dtype that numpy does not have by itself.
bool has_dtype(DType dtype);

// All bytes before the elements, as numpy.save writes them.
std::string write_header(DType dtype, const Shape& shape);

}  // namespace ckpt::numpy
