// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/parts.h"

#include <unordered_set>

namespace ckpt::pickle {

std::vector<Id> storages_below(const Document& document, Id root) {
  if (root == kNoId) return {};
  std::vector<Id> found, open{root};
  std::unordered_set<Id> seen{root};
  while (!open.empty()) {
    const Id id = open.back();
    open.pop_back();
    if (document.type(id) == Type::kPersistent) found.push_back(id);
    each_part(document, id, [&](Id part) {
      if (seen.insert(part).second) open.push_back(part);
    });
  }
  return found;
}

}  // namespace ckpt::pickle
