// SPDX-License-Identifier: Apache-2.0
// Finds the items of a .distcp file without the .metadata that says where they
// are: every archive whose first header and end record agree on where it
// begins.
//
//   | PK\3\4 archive/data.pkl … directory | PK\5\6 | PK\3\4 archive/data.pkl …
//   begin                                   end      begin of the next one
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/dtype.h"
#include "lib/io/file.h"

namespace ckpt::salvage {

// A row-major tensor that an item holds, as torch.save wrote it.
struct ScannedTensor {
  DType dtype = DType::f32;
  Shape shape;
  uint64_t data = 0;  // where its elements begin in the file
};

struct ScannedItem {
  uint64_t offset = 0;
  uint64_t length = 0;
  // Nothing for another value, or for a tensor that isn't stored plainly.
  std::optional<ScannedTensor> tensor;
};

// Returns the items in file order. Skips anything between items, and items that
// can't be opened. Reads the whole file once.
std::vector<ScannedItem> scan_items(const io::Handle& file);

}  // namespace ckpt::salvage
