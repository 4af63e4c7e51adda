// SPDX-License-Identifier: Apache-2.0
// Checks that no rank's file is missing, where each rank writes one:
// rank_00.pt, rank_01.pt …
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// If any of the ranks 0, 1 … `wanted` - 1 is not in `have`, adds a damage
// "missing_rank" that names the first one's file and counts those there. `path`
// gives the path of a rank's file, `why` says what implies that many ranks.
void check_rank_files(const std::set<uint64_t>& have, uint64_t wanted,
                      const std::function<std::string(uint64_t)>& path,
                      const std::string& why, Catalog& catalog);

}  // namespace ckpt::formats
