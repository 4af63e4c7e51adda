// SPDX-License-Identifier: Apache-2.0
// Walks over sharded state dicts.
#pragma once

#include "ckpt/mcore.h"

namespace ckpt::mcore {

// A level of a walk over a state, while it lives: walks recurse. Throws
// usage_error where a program's state nests deeper than any trainer's.
class Level {
 public:
  Level();
  ~Level();
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
};

// Calls `take` for every State that is neither a dict nor a list. `take` may
// replace it by a dict, which is not walked.
template <typename Tree, typename Take>
void walk_leaves(Tree& state, const Take& take) {
  const Level level;
  if (auto* dict = state.template as<Dict>()) {
    for (auto& [name, member] : *dict) walk_leaves(member, take);
  } else if (auto* list = state.template as<List>()) {
    for (auto& member : *list) walk_leaves(member, take);
  } else {
    take(state);
  }
}

// A word for messages: "dict", "sharded tensor".
const char* kind_of(const State& state);

}  // namespace ckpt::mcore
