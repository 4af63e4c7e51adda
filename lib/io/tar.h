// SPDX-License-Identifier: Apache-2.0
// The members of a tar archive as ranges of the file; nothing is extracted.
//
//   0      100              124    136      148     156    157    257     345
//   | name | mode uid gid | size | mtime | check | type | link | ustar | prefix
//   | 512 | size bytes, padded to 512 | next header … | two blocks of zeros |
//
// Numbers are octal, or (first bit set) binary. A member of type x (pax) or L
// (GNU) holds the name or the size of the next one. Names are made relative:
// "./model_weights/common.pt" is model_weights/common.pt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/io/file.h"

namespace ckpt::io {

struct TarMember {
  std::string name;  // relative, no "." and no ".."; "": the root
  bool directory = false;
  uint64_t offset = 0;  // of the content in the file
  uint64_t size = 0;
};

// True if the file begins with a header of this kind.
bool is_tar(const Handle& file);

// Members in file order. Throws input_error for names that leave the archive or
// occur twice, for links, devices and sparse files, for truncated members and
// for an archive without its end.
std::vector<TarMember> read_tar(const Handle& file);

}  // namespace ckpt::io
