// SPDX-License-Identifier: Apache-2.0
// The frame of an item: everything in torch.save(tensor) except the payload.
//
//   | head: data.pkl, version marks, header of data/0 | payload | tail |
//   0                                        data_offset
//
// It depends only on dtype and shape, so a checkpoint of a million pieces has a
// few hundred frames. Private to this room.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/dtype.h"

namespace ckpt::dcp {

struct Frame {
  uint64_t size = 0;         // of the item
  uint64_t data_offset = 0;  // of the payload in it
  uint64_t payload = 0;      // bytes
  std::shared_ptr<const std::string> head;
  std::shared_ptr<const std::string> tail;  // null: the head is the whole item
  std::vector<uint64_t> crcs;  // where the payload's CRC-32 goes in the item
};

class Frames {
 public:
  // Throws unfaithful_error for dtypes that torch lacks. The reference is valid
  // as long as this object.
  const Frame& of(DType dtype, const Shape& shape);

 private:
  struct Key {
    DType dtype;
    Shape shape;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  std::unordered_map<Key, Frame, Hash> frames_;
};

}  // namespace ckpt::dcp
