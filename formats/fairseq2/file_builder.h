// SPDX-License-Identifier: Apache-2.0
// Builds one file of the target: tensors are added, then the file is planned
// and the target's tensors get their pieces in it.
#pragma once

#include <string>
#include <vector>

#include "ckpt/layout.h"
#include "containers/torch/file_plan.h"
#include "formats/fairseq2/layout.h"
#include "lib/pickle/value.h"

namespace ckpt::fairseq2 {

// Which part of every tensor the file holds.
struct Coordinates {
  Topology grid;
  uint32_t pp = 0;
  uint32_t tp = 0;
  uint32_t dp = 0;
  std::string path() const;  // "pp_00/tp_00/sdp_00.pt"
};

class FileBuilder {
 public:
  explicit FileBuilder(const Coordinates& at) : at_(at) {}

  pickle::Document document;

  // Each adds a slot for target.catalog.tensors[index] and returns it.
  // The rows of a data-parallel rank, or all rows.
  uint64_t add_rows(const Target& target, size_t index, bool whole);
  // A range of the flattened tp-local tensor, as a 1-D tensor.
  uint64_t add_flat(const Target& target, size_t index, const FlatRange& range);

  const Shape& shape(uint64_t slot) const { return slots_[slot].shape; }

  // Plans the file with `root` as its value and adds it to the target.
  void finish(Target& target, pickle::Id root, const std::string& path);

 private:
  struct Pending {
    size_t tensor;
    uint64_t slot;
    Piece piece;
    Dims at;  // where it begins in the slot's tensor
  };
  uint64_t add_slot(const Tensor& tensor, Shape shape);

  Coordinates at_;
  std::vector<torch::TensorSlot> slots_;
  std::vector<Pending> pending_;
};

}  // namespace ckpt::fairseq2
