// SPDX-License-Identifier: Apache-2.0
// A plan: byte copies from one catalog's files to another's.
//
// A Job moves the rows of some source lanes to some target lanes:
//
//   source lanes (read)          target lanes (written)
//   | a0 | a1 | a2 | a3 |        | a0 a1 |   rows x width bytes each, row r
//   | ......row r ..... |   ─►   | ..... |   at offset + r * row_stride
//                                | a2 a3 |
//
// So splitting, joining and re-splitting columns are the same operation: read a
// block of rows once, write each target's block of rows in one piece. A single
// row is a plain copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::reshard {

inline constexpr uint32_t kNone = UINT32_MAX;

struct Lane {
  uint64_t offset = 0;               // bytes in the file, of row 0
  uint64_t row_stride = 0;           // bytes
  uint64_t width = 0;                // bytes of a row that are used
  uint32_t file = kNone;             // in the source's or the target's catalog
  uint8_t transform = kNoTransform;  // sources only
};

struct Move {
  uint64_t content = 0;         // where row 0 stands in the tensor's content,
  uint64_t content_stride = 0;  // and the rows' distance: source bytes
  uint64_t bytes = 0;           // of a row, as the source stores it
  uint64_t source_column = 0;   // bytes in the source lane's row
  uint64_t target_column = 0;   // bytes in the target lane's row
  uint32_t source = 0;          // lane of the job
  uint32_t target = kNone;      // lane of the job; kNone: only read
  // The digest slots that the bytes are added to. `digest` is the tensor's,
  // unless another move already counts the same bytes (a target replica).
  uint32_t digest = kNone;
  uint32_t check = kNone;  // of the source piece, if it has replicas
};

struct Job {
  uint64_t rows = 1;
  uint32_t tensor = 0;
  uint32_t first_source = 0, sources = 0;  // in Plan::lanes
  uint32_t first_target = 0, targets = 0;  // in Plan::lanes
  uint32_t first_move = 0, moves = 0;      // in Plan::moves
};

// Elements that are not in rows: transposed or otherwise strided views.
struct Gather {
  uint32_t tensor = 0;
  uint32_t source_file = kNone;
  uint32_t target_file = kNone;
  uint8_t transform = kNoTransform;
  uint64_t source_offset = 0;  // bytes
  uint64_t target_offset = 0;  // bytes
  uint64_t content = 0;        // elements
  Dims shape;                  // elements
  Dims source_strides;         // bytes
  Dims target_strides;         // bytes; row-major in some box
  Dims content_strides;        // elements
  uint32_t digest = kNone;
  uint32_t check = kNone;
};

// One tensor as the plan sees it; its index is its digest slot.
struct PlannedTensor {
  std::string name;
  DType source_dtype = DType::f32;
  DType target_dtype = DType::f32;
  Shape shape;
  bool casts() const { return !same_bytes(source_dtype, target_dtype); }
};

// The digest slots of two pieces whose elements must be equal.
struct ReplicaCheck {
  uint32_t tensor = 0;
  uint32_t first = 0, second = 0;            // slots
  uint32_t first_file = 0, second_file = 0;  // in the source's catalog
};

struct Plan {
  std::vector<Job> jobs;
  std::vector<Lane> lanes;
  std::vector<Move> moves;
  std::vector<Gather> gathers;
  std::vector<PlannedTensor> tensors;
  std::vector<ReplicaCheck> replicas;
  uint32_t slots = 0;          // tensors first, then replica checks
  uint64_t bytes_read = 0;     // payload, replicas that are compared included
  uint64_t bytes_written = 0;  // payload
};

}  // namespace ckpt::reshard
