// SPDX-License-Identifier: Apache-2.0
// Any bytes as .zarray: refused with an Error, or the array has a shape, a
// grid and an element that can be counted.
#include "ckpt/error.h"
#include "containers/zarr/array.h"
#include "tests/fuzz/memory_file.h"

using namespace ckpt;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Directory directory;
  directory.write(".zarray", {reinterpret_cast<const char*>(data), size});
  try {
    const zarr::Array array = zarr::read_array(directory.path());
    if (array.chunks.size() != array.shape.size()) fuzz::found("chunk rank");
    if (!byte_size(array.dtype, array.shape)) fuzz::found("overflow");
    const Dims grid = zarr::grid_of(array.shape, array.chunks);
    zarr::chunk_name(grid, array.separator);
    if (array.fill && array.fill->size() != element_size(array.dtype))
      fuzz::found("a fill value of another size");
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) fuzz::found(error.what());
  }
  return 0;
}
