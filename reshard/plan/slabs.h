// SPDX-License-Identifier: Apache-2.0
// Cutting the boxes of a matrix into slabs of rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/plan/placed.h"
#include "reshard/plan/plan.h"

namespace ckpt::reshard {

// What a merge needs to know about a tensor.
struct Cells {
  uint32_t index = 0;  // in Plan::tensors
  Grid grid;
  uint64_t target_element = 1;  // bytes; 0: as the source
  std::string path;             // for messages
  bool digest = true;           // false: a replica, only its check counts
  bool whole = true;            // the targets must hold the whole tensor
  bool refined = false;         // the boxes count in Tensor::grid
};

// A box of a matrix: rows [row_begin, row_end) and columns [begin, end), in
// elements. Where its first element lies, and how far its rows are apart.
struct Rect {
  uint64_t row_begin = 0, row_end = 0;
  uint64_t begin = 0, end = 0;
  uint64_t offset = 0;      // bytes
  uint64_t row_stride = 0;  // bytes
  uint32_t file = kNone;
  uint32_t check = kNone;
  uint8_t transform = kNoTransform;
  bool primary = true;
  uint64_t covered = 0;  // targets: elements that have a source
};

// Emits the jobs of one matrix of a tensor whose row length is `columns` and
// whose first element is element `content` of the tensor. Counts covered
// elements in the targets. Throws if sources overlap.
void add_slabs(const Cells& cells, uint64_t columns, uint64_t content,
               std::vector<Rect>& sources, std::vector<Rect>& targets,
               Plan& plan);

}  // namespace ckpt::reshard
