// SPDX-License-Identifier: Apache-2.0
// Files that each rank writes one of, rank_00.pt, rank_01.pt …: are all there?
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// The files of ranks 0, 1 … `wanted` - 1 that are not among `have`: a damage
// "missing_rank" that names the first of them and counts the others. `path`
// gives the path of a rank's file, `why` says what makes it so many ranks.
void check_rank_files(const std::set<uint64_t>& have, uint64_t wanted,
                      const std::function<std::string(uint64_t)>& path,
                      const std::string& why, Catalog& catalog);

}  // namespace ckpt::formats
