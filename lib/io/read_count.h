// SPDX-License-Identifier: Apache-2.0
// The number of bytes that this process has read from files so far, for any
// purpose. Shows what loading a part of a checkpoint cost.
#pragma once

#include <cstdint>

namespace ckpt::io {

uint64_t bytes_read();

}  // namespace ckpt::io
