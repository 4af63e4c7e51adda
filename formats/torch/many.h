// Files of torch.save by the thousand, one for each rank: opened many at a
// time, without a read for each record in them.
//
//   rank files ─► in_order: read, decode ─► one after the other ─► catalog
//                 (32 at a time, aside)     (in the order of ranks)
//
// Where a record's data begin only its local header says, which lies before
// the data: of 16,384 files with 72 tensors each these are 1.2 million reads
// all over the disk. torch lays records out by a rule, so the directory at the
// file's end is enough to compute it (zip::Headers::kComputed). Catalog::locate
// then reads the headers and compares, before any payload is read.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "formats/torch/container.h"
#include "lib/in_order.h"

namespace ckpt::torch {

// As many files, and more, are opened that way. Fewer are checked at once.
inline constexpr size_t kManyFiles = 256;

// A file that was opened aside: its own catalog has one File or more.
struct Opened {
  Catalog aside;
  Container container;
};
// `many`: local headers of zip files are computed, not read. Safe to call on
// many threads.
Opened open_aside(const std::string& path, const formats::ReadOptions& options,
                  bool many);

// Adds what was found aside to the catalog; files get new numbers from what is
// returned on.
uint32_t take_aside(Catalog& aside, Catalog& catalog);

// Makes catalog.locate read the local headers of all files that pieces lie in.
void check_headers_later(Catalog& catalog);

}  // namespace ckpt::torch
