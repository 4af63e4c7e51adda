// SPDX-License-Identifier: Apache-2.0
// A torch zip archive inside a bigger file: an item of a .distcp file, or the
// .pt file of one object.
//
//   .distcp   | item | item | …      item = | archive/data.pkl | byteorder |
//                                             archive/data/0 | … | directory |
//
// Offsets in an item count from its first byte.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "containers/torch/container.h"
#include "containers/torch/tensors.h"
#include "lib/io/file.h"

namespace ckpt::torch {

// Opens the archive that `item` is (a slice, or memory). Like open_container,
// but adds no File: storages have file `file` and offsets counted from byte 0
// of that file, where the item begins at `base`. Appends the checksums of
// storage records to `crcs` and oddities to `problems`, if those are not null.
// Deflated records are refused. Throws input_error.
Container open_item(const io::Handle& item, uint32_t file, uint64_t base,
                    std::vector<StoredCrc>* crcs = nullptr,
                    std::vector<Problem>* problems = nullptr);

// The one tensor that an item is.
struct LocatedTensor {
  Extent extent;  // strides empty if row-major contiguous
  uint8_t transform = kNoTransform;
};

// Finds the tensors of one file's items. Made for hundreds of thousands of
// items in file order: one read of a few KiB for each in the common case
// (written by torch itself), open_item for everything else. Not thread-safe.
class TensorLocator {
 public:
  // `file` outlives it; `number` is its index in Catalog::files.
  TensorLocator(const io::Handle& file, uint32_t number)
      : file_(file), number_(number) {}

  // The item is bytes [offset, offset + length) of the file. Throws input_error
  // if it is not a single tensor, or if dtype or shape differ from what the
  // index says. `name` is for messages.
  LocatedTensor locate(uint64_t offset, uint64_t length, DType dtype,
                       const Shape& shape, const std::string& name,
                       std::vector<StoredCrc>* crcs = nullptr);

  // The same for an item in a file of its own (a decompressed one) of which
  // only the two ends are at hand; nothing if they are not enough.
  std::optional<LocatedTensor> locate_ends(std::string_view head,
                                           std::string_view tail,
                                           uint64_t length, DType dtype,
                                           const Shape& shape,
                                           std::vector<StoredCrc>* crcs);

 private:
  // What the pickle of an item says. Most items of a checkpoint have the same
  // few pickles, so each is decoded once.
  struct Geometry {
    DType dtype = DType::f32;
    Shape shape;
    Dims strides;
    uint64_t offset = 0;    // bytes in the storage
    uint64_t declared = 0;  // bytes of the storage
    std::string key;        // of the storage's record
    uint8_t transform = kNoTransform;
  };
  static std::optional<Geometry> decode(std::string_view pickle);
  const std::optional<Geometry>& geometry(std::string_view pickle);
  LocatedTensor locate_slowly(uint64_t offset, uint64_t length, DType dtype,
                              const Shape& shape, const std::string& name,
                              std::vector<StoredCrc>* crcs);
  std::string_view read(uint64_t offset, uint64_t count, uint64_t ahead);

  const io::Handle& file_;
  const uint32_t number_;
  std::unordered_map<std::string, std::optional<Geometry>> known_;
  std::string buffer_;  // bytes of the file from buffer_at_
  uint64_t buffer_at_ = 0;
};

// Locates a single item.
LocatedTensor locate_tensor(const io::Handle& item, uint32_t file,
                            uint64_t base, DType dtype, const Shape& shape,
                            const std::string& name,
                            std::vector<StoredCrc>* crcs = nullptr);

// An object's archive, opened, and its bytes: storages in it have offsets
// counted from byte 0 of `item`.
struct OpenedObject {
  io::Handle item;
  Container container;
  std::vector<StoredCrc> crcs;  // counted as storages are
  std::string name;             // of the object
};
// `file` is files[object.file], opened.
OpenedObject open_archive(const Catalog& catalog, const Object& object,
                          const io::Handle& file);

// Opens the archive of one object (files[object.file], offset, bytes; raw or
// compressed) and sets document and node. Throws input_error.
void open_object(const Catalog& catalog, Object& object);

// Asks for the archives of these objects that are on a server, as far as a few
// MiB go: read one after the other, each would be a round trip. Fails silently.
void ask_for_objects(const Catalog& catalog, std::vector<size_t> ids);

// What a persistent id of an opened object refers to, little-endian.
Content storage_content(const OpenedObject& object, pickle::Id node);

}  // namespace ckpt::torch
