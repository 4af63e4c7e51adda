// SPDX-License-Identifier: Apache-2.0
// Makes a sound checkpoint of the same format from what is left of a damaged
// one.
//
//   source ─► files repaired ─► shadow ─► the format's own reader
//                                           │ checksums, digests
//             replicas, another step ─► elements that are gone
//                                           │
//                              fill or refuse ─► publish
//
// No reader is made lenient: the result must pass like any other checkpoint
// before a byte of it is published.
#pragma once

#include <string>
#include <vector>

#include "ckpt/ckpt.h"
#include "formats/format.h"
#include "formats/salvage/repair.h"
#include "lib/progress.h"

namespace ckpt::library {

enum class Fill : uint8_t { kRefuse, kZeros, kNan };

struct SalvageOptions {
  std::string from;  // format, or ""
  formats::ReadOptions read;
  Fill fill = Fill::kRefuse;
  std::string like;  // another step of the same run, or ""
  // What DST's manifest calls the source; "": its path.
  std::string source_name;
  bool dry_run = false;
  SaveOptions save;
};

// Elements that are lost: [begin, end) of a box of the tensor, row-major.
struct GoneElements {
  std::string tensor;
  DType dtype = DType::f32;
  Box box;
  FlatRange elements;
  uint64_t bytes = 0;
  std::string file;  // in the checkpoint
};

struct Salvaged {
  std::string format;
  uint64_t tensors = 0;
  uint64_t files = 0;
  uint64_t bytes = 0;
  std::vector<salvage::Note> rebuilt;
  std::vector<GoneElements> gone;
  // Losses without elements to list: files, and tensors known by name only.
  std::vector<salvage::Note> lost;
  // What the format's reader reports about the result but can't decide.
  std::vector<salvage::Note> warnings;
  bool written = false;

  bool whole() const { return gone.empty() && lost.empty(); }
};

// Throws input_error if what is left is not a checkpoint. Writes nothing if
// something is gone and options.fill is kRefuse; the result says so.
Salvaged salvage_checkpoint(const std::string& source,
                            const std::string& target,
                            const SalvageOptions& options,
                            const Progress& progress);

}  // namespace ckpt::library
