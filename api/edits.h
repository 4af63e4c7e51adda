// SPDX-License-Identifier: Apache-2.0
// How a selection changed the source's tensors, for code that knows them as
// they are stored.
#pragma once

#include <map>
#include <string>

namespace ckpt::library {

struct Edit {
  std::string stored;  // the name that the source has it by
  bool cut = false;    // its rows are others, or in another order
};

// By current name. A tensor that is not here is unchanged.
using Edits = std::map<std::string, Edit>;

inline Edit edit_of(const Edits& edits, const std::string& name) {
  const auto found = edits.find(name);
  return found == edits.end() ? Edit{name, false} : found->second;
}

// Drops edits that change nothing: "layers.0.w" is still "layers.0.w", and
// whole.
inline void tidy(Edits& edits) {
  std::erase_if(edits, [](const auto& edit) {
    return !edit.second.cut && edit.second.stored == edit.first;
  });
}

}  // namespace ckpt::library
