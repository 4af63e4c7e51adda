// SPDX-License-Identifier: Apache-2.0
// How many bytes this process has read from files so far, whatever for. Who
// loads a part of a checkpoint can show what it cost.
#pragma once

#include <cstdint>

namespace ckpt::io {

uint64_t bytes_read();

}  // namespace ckpt::io
