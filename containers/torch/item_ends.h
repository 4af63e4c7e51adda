// SPDX-License-Identifier: Apache-2.0
// Reads a torch zip archive of one tensor from its first and last bytes alone.
// Handles what torch itself writes, nothing else.
//
//   head   | local header | data.pkl | … | byteorder | local header of data/0
//          | payload …
//   tail   … payload | version | … | central directory | end records |
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace ckpt::torch {

// The size of either end. torch's archives of plain tensors need 704 bytes of
// the head, DTensors 896, and 873 of the tail; those of subclasses are opened
// whole.
inline constexpr uint64_t kItemEnd = 1024;

// Views into the bytes passed to read_ends.
struct ItemEnds {
  std::string_view pickle;  // data.pkl; its checksum was right
  std::string_view record;  // name of the only storage: "archive/data/0"
  std::string_view key;     // "0"
  uint64_t data_offset = 0;
  uint64_t data_size = 0;
  uint32_t crc32 = 0;
  bool big_endian = false;
};

// `head` begins at byte 0, `tail` ends at byte `size`; either may be all of it.
// Nothing if anything is unusual: the archive must then be opened as a whole,
// which says what is wrong, if anything is.
std::optional<ItemEnds> read_ends(std::string_view head, std::string_view tail,
                                  uint64_t size);

struct ItemRecord {
  std::string_view name;
  uint64_t offset = 0;  // of its content
  uint64_t size = 0;
  std::string_view content;  // empty for the storage
};

// All records of such an archive, in the order of its directory; the checksums
// of all but the storage were right. Nothing if read_ends() finds nothing.
std::optional<std::vector<ItemRecord>> read_item_records(std::string_view head,
                                                         std::string_view tail,
                                                         uint64_t size);

}  // namespace ckpt::torch
