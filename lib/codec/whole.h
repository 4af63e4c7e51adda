// SPDX-License-Identifier: Apache-2.0
// Streams that no checkpoint has inside of it, but whole files may be packed
// with: joblib's and pandas' xz, lzma and lz4. They are unpacked in memory.
#pragma once

#include <cstdint>
#include <string>

#include "lib/io/file.h"

namespace ckpt::codec {

// Frames of the LZ4 format, one after the other. Checksums are not checked:
// what is unpacked is only looked at. Throws input_error for what is no such
// frame, or makes more than `limit` bytes.
std::string unpack_lz4(const io::Handle& file, uint64_t limit);

// .xz, or .lzma of its first version. Also throws resource_error if this build
// lacks liblzma.
std::string unpack_xz(const io::Handle& file, uint64_t limit);

}  // namespace ckpt::codec
