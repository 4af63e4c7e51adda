// SPDX-License-Identifier: Apache-2.0
// Lists an array's chunks as pieces of a tensor.
#pragma once

#include "ckpt/catalog.h"
#include "containers/zarr/array.h"

namespace ckpt::zarr {

// Lists the array's directory. Adds a File and a piece of `tensor` for each
// chunk, then a few pieces for all chunks without a file, which hold the fill
// value. The work is bounded by the number of files, whatever grid the array
// claims. Opens nothing.
//
// Throws input_error if a chunk's size is not that of its elements, or if one
// is missing and there is no fill value. Anything in the directory that is not
// a chunk of the array goes into catalog.problems.
void add_chunks(const Array& array, Catalog& catalog, Tensor& tensor);

}  // namespace ckpt::zarr
