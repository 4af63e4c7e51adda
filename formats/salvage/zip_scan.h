// SPDX-License-Identifier: Apache-2.0
// Finds the records of a zip archive without its directory: from local headers,
// and from whatever directory entries are left.
//
//   | local header | data | descriptor | local header | data | ✂
//
// torch leaves sizes out of local headers; they are in the descriptor after the
// data. A descriptor counts if it states the size that puts it there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/io/file.h"

namespace ckpt::salvage {

struct ScannedRecord {
  std::string name;
  uint64_t data_offset = 0;
  uint64_t packed_size = 0;
  uint64_t size = 0;
  uint16_t method = 0;
  // From descriptor, local header and directory. None: unchecked.
  std::vector<uint32_t> crcs;
  bool ends = true;  // false: the file, or its readable part, ends first
};

// Returns the records in file order. Reads the whole file once.
std::vector<ScannedRecord> scan_records(const io::Handle& file);

}  // namespace ckpt::salvage
