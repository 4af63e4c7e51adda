// SPDX-License-Identifier: Apache-2.0
// Archives that differ in payload and little else: the files of a checkpoint's
// ranks, hundreds of which hold tensors of the same names and shapes.
//
//   | data.pkl | byteorder | data/0 | data/1 | … | version | directory, end |
//    └ contents ──────────┘   any bytes           └ content ┘ └ equal but for ┘
//                                                               checksums
//
// If the directory equals that of a file read earlier, all records are at the
// same places, and nothing has to be parsed again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/zip/archive.h"

namespace ckpt::zip {

class Outline {
 public:
  // The outline of an archive that was read with Headers::kComputed; `contents`
  // are the names of records whose bytes matter. nullopt if the directory alone
  // doesn't tell where these are: deflated records, local headers that were
  // read.
  static std::optional<Outline> of(const io::Handle& file,
                                   const Archive& archive,
                                   std::span<const std::string> contents);

  // What is individual in a matching archive.
  struct Own {
    std::vector<uint32_t> crcs;  // of each entry, in the directory's order
    std::string contents;  // records with local headers and checksums, joined
  };
  // Reads the directory of `file` and the contents it locates. nullopt if the
  // directory differs, or lacks a checksum (0) where this one has it.
  std::optional<Own> match(const io::Handle& file) const;

  friend bool operator==(const Outline&, const Outline&) = default;

 private:
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
    size_t entry = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };
  std::string read_contents(const io::Handle& file) const;

  uint64_t size_ = 0;             // of the file
  uint64_t directory_begin_ = 0;  // it and the end records end the file
  std::string directory_;         // each checksum is replaced by 0 or 1
  std::vector<uint64_t> crc_at_;  // of each entry, in directory_
  std::vector<Range> contents_;   // by offset
};

}  // namespace ckpt::zip
