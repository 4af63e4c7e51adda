// SPDX-License-Identifier: Apache-2.0
// A damaged file and what is known of it: which bytes the sound file has, and
// from where they come.
//
//   sound file   | literal | copied from the damaged one | gone | literal |
//
// Functions here read headers, and payload where a checksum judges it; they
// write nothing. What they can't know they don't guess: it is in `gone`, or
// they throw an input_error that says why the file as a whole is lost.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/layout.h"
#include "lib/io/file.h"

namespace ckpt::salvage {

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

struct Copy {
  std::string from;  // path
  uint64_t from_offset = 0;
  uint64_t offset = 0;  // in the sound file
  uint64_t size = 0;
};

// What was done to a file. `inferred`: from something else than the file
// itself or a checksum, so that it may be wrong.
struct Note {
  std::string file;
  std::string what;
  bool inferred = false;
};

struct Repair {
  uint64_t size = 0;
  std::vector<Copy> copies;
  std::vector<Literal> literals;
  std::vector<LateCrc> crcs;  // of the finished bytes, gone ones included
  std::vector<Range> gone;
  std::vector<Note> notes;
};

// Nothing: the file is whole as far as it says itself. `like` is another
// step's file of the same name, or "".
//
// A safetensors file: its header, its length. A header that can't be read is
// taken from `like` if both files have the same length and most of the header
// agrees.
std::optional<Repair> repair_safetensors(const std::string& path,
                                         const std::string& like);

// A zip of torch.save: the directory, every record's checksum. Records that
// were cut off are gone; their sizes are in data.pkl.
std::optional<Repair> repair_zip(const std::string& path);

// An item of a .distcp file, bytes [offset, offset + size), that can't be
// opened: its frame, written anew. Nothing if torch of today would have made
// one of another size.
struct ItemRepair {
  Range payload;  // in the file
  std::vector<Literal> literals;
  LateCrc crc;
  bool payload_is_right = false;  // a checksum that is left says so
};
std::optional<ItemRepair> repair_item(const std::string& path, uint64_t offset,
                                      uint64_t size, DType dtype,
                                      const Shape& shape);

// The data files that a .metadata names, by their name beside it.
std::vector<std::string> data_files(const std::string& metadata);
// How long each must be at least to hold its items; `metadata` stands beside
// files of those names that are long enough for any.
std::map<std::string, uint64_t> data_sizes(const std::string& metadata);

// All of `like`, for a file that is lost: `payload` are the ranges of it that
// hold tensors, which are gone.
Repair from_template(const std::string& like, std::vector<Range> payload);

// The index of a set of safetensors shards (names in `directory`), from their
// headers. Names that an old index (its weight_map) has and no shard holds
// are left out.
std::string index_of_shards(const std::string& directory,
                            const std::vector<std::string>& shards);

// The CRC-32 of bytes of a file.
uint32_t crc_of(const io::Handle& file, Range range);

// Sorted, joined where they touch.
std::vector<Range> normalized(std::vector<Range> ranges);
// The parts of `range` outside of `gone` (normalized).
std::vector<Range> without(Range range, const std::vector<Range>& gone);

}  // namespace ckpt::salvage
