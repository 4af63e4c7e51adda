// SPDX-License-Identifier: Apache-2.0
#include "formats/rank_holes.h"

namespace ckpt::formats {

void check_rank_files(const std::set<uint64_t>& have, uint64_t wanted,
                      const std::function<std::string(uint64_t)>& path,
                      const std::string& why, Catalog& catalog) {
  if (have.size() >= wanted) return;
  uint64_t first = 0;
  while (have.contains(first)) ++first;
  catalog.problems.push_back(
      damage("missing_rank", {path(first), {}},
             "is missing: {} of {} ranks' files are there ({}); training "
             "can't go on without it",
             have.size(), wanted, why));
}

}  // namespace ckpt::formats
