// A torch zip archive inside of a bigger file: an item of a .distcp file, or
// the .pt file of one object.
//
//   .distcp   | item | item | …      item = | archive/data.pkl | byteorder |
//                                             archive/data/0 | … | directory |
//
// Offsets in an item count from its first byte.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ckpt/catalog.h"
#include "formats/torch/container.h"
#include "formats/torch/tensors.h"
#include "lib/io/file.h"

namespace ckpt::torch {

// Opens the archive that `item` is (a slice, or memory). Like open_container,
// but adds no File: storages have file `file` and offsets that count from byte
// 0 of that file, of which the item begins at `base`. Appends the checksums
// of storage records to `crcs` if that is not null. Deflated records are
// refused. Throws input_error.
Container open_item(const io::Handle& item, uint32_t file, uint64_t base,
                    std::vector<StoredCrc>* crcs = nullptr);

// The one tensor that an item is. Throws input_error if it is another value,
// or if dtype or shape differ from what the index says. Made for hundreds of
// thousands of items: one read of at most a few KiB for each in the common
// case (what torch itself wrote), open_item for everything else.
struct LocatedTensor {
  Extent extent;  // strides empty if row-major contiguous
  uint8_t transform = kNoTransform;
};
LocatedTensor locate_tensor(const io::Handle& item, uint32_t file,
                            uint64_t base, DType dtype, const Shape& shape,
                            const std::string& name,
                            std::vector<StoredCrc>* crcs = nullptr);

}  // namespace ckpt::torch
