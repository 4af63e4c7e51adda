// SPDX-License-Identifier: Apache-2.0
// Where an archive's central directory is, according to its end records.
#pragma once

#include <cstdint>

#include "lib/io/file.h"

namespace ckpt::zip {

struct Directory {
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t count = 0;
};

// Reads and checks the end record, which must end the file, and the zip64 end
// record if there is one. Throws input_error if there is no end record, if
// there are two to choose from, or if the two kinds don't agree.
Directory find_directory(const io::Handle& file);

}  // namespace ckpt::zip
