// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ckpt::app {

class JsonWriter;

// The number of ranks of this job; 1 without a launcher.
uint32_t rank_count();

// "ranks": what each rank read and wrote; nothing without a launcher.
void write_ranks(JsonWriter& json);

}  // namespace ckpt::app
