// SPDX-License-Identifier: Apache-2.0
// A damaged file and what is known about it: which bytes the sound file has,
// and where they come from.
//
//   sound file   | literal | copied from the damaged one | gone | literal |
//
// The functions here read headers, and payload if a checksum can judge it; they
// write nothing. They don't guess what they can't know: it is in `gone`, or
// they throw input_error saying why the file as a whole is lost.
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

// What was done to a file. `inferred`: from something other than the file
// itself or a checksum, so it may be wrong.
struct Note {
  std::string file;
  std::string what;
  bool inferred = false;
};

struct Repair {
  uint64_t size = 0;
  std::vector<Copy> copies;
  std::vector<Literal> literals;
  std::vector<LateCrc> crcs;  // of the finished bytes, including gone ones
  std::vector<Range> gone;
  std::vector<Note> notes;
};

// Returns nothing if the file is whole by its own account. `like` is another
// step's file of the same name, or "".
//
// Repairs a safetensors file's header and length. Takes a header that can't be
// read from `like` if both files have the same length and most of the header
// agrees.
std::optional<Repair> repair_safetensors(const std::string& path,
                                         const std::string& like);

// Repairs a torch.save zip: its directory and every record's checksum. Records
// that were cut off are gone; their sizes are in data.pkl.
std::optional<Repair> repair_zip(const std::string& path);

// An item of a .distcp file, bytes [offset, offset + size), that can't be
// opened: its frame, written anew. Nothing if today's torch would have made one
// of another size.
struct ItemRepair {
  Range payload;  // in the file
  std::vector<Literal> literals;
  LateCrc crc;
  bool payload_is_right = false;  // a surviving checksum says so
};
std::optional<ItemRepair> repair_item(const std::string& path, uint64_t offset,
                                      uint64_t size, DType dtype,
                                      const Shape& shape);

// The data files that a .metadata names, by name in its directory.
std::vector<std::string> data_files(const std::string& metadata);
// The minimum length of each to hold its items; `metadata` must be beside files
// of those names that are long enough for any item.
std::map<std::string, uint64_t> data_sizes(const std::string& metadata);

// Replaces a lost file by all of `like`, except its `payload`, the ranges that
// hold tensors, which are gone.
Repair from_template(const std::string& like, std::vector<Range> payload);

// The index of a set of safetensors shards (names in `directory`), from their
// headers. Leaves out names that an old index (its weight_map) has but no shard
// holds.
std::string index_of_shards(const std::string& directory,
                            const std::vector<std::string>& shards);

// The CRC-32 of a range of a file.
uint32_t crc_of(const io::Handle& file, Range range);

// Sorts ranges and joins those that touch.
std::vector<Range> normalized(std::vector<Range> ranges);
// The parts of `range` outside `gone` (normalized).
std::vector<Range> without(Range range, const std::vector<Range>& gone);

}  // namespace ckpt::salvage
