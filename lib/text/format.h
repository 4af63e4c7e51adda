// SPDX-License-Identifier: Apache-2.0
// Numbers and names as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt::text {

// "512 B", "3.2 KiB", "15.4 GiB"
std::string iec_size(uint64_t bytes);
// "1 file", "2 files".
std::string counted(uint64_t count, std::string_view noun);

// "5GB" = 5 * 10^9, "5GiB" = 5 * 2^30, "1.5 GB", "123" = bytes; "5G" = 5GiB, as
// in Slurm, zstd and duckdb. Throws usage_error.
uint64_t parse_size(std::string_view text);

// A name in which control characters, invalid UTF-8, newlines, invisible and
// direction-changing characters are \xNN of their bytes, so that a hostile name
// can't drive a terminal.
std::string printable(std::string_view name);

}  // namespace ckpt::text
