// SPDX-License-Identifier: Apache-2.0
// Which chunks an array has, as pieces of a tensor.
#pragma once

#include "ckpt/catalog.h"
#include "containers/zarr/array.h"

namespace ckpt::zarr {

// Lists the array's directory and adds a File and a piece to `tensor` for each
// chunk, then a few pieces for all chunks that have no file: they hold the
// fill value. The work is bounded by the files that are there, whatever grid
// the array claims. Opens nothing.
//
// Throws input_error if a chunk has another size than its elements, or if one
// is missing and there is no fill value. What lies in the directory and is
// not a chunk of the array goes into catalog.problems.
void add_chunks(const Array& array, Catalog& catalog, Tensor& tensor);

}  // namespace ckpt::zarr
