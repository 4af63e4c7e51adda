// SPDX-License-Identifier: Apache-2.0
// Names in a folder that a pattern of trainers.json has. Private to this room.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ckpt::runs {

// The matching names in `folder` (or one folder below, if the pattern has a
// slash) with their numbers, ordered by number.
struct Name {
  std::string path;  // relative to the folder
  std::map<std::string, uint64_t, std::less<>> numbers;
};
std::vector<Name> names_like(const std::string& folder,
                             const std::string& pattern);

// "rng_state_0" of "random/rng_state_0.pth".
std::string stem_of(const std::string& path);

}  // namespace ckpt::runs
