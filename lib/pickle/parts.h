// SPDX-License-Identifier: Apache-2.0
// The parts of a pickle's value, for walks over values.
//
//   call       callable, args, kwargs, state, then its items, then its pairs
//   container  its items; a dict's are key, value, key, value …
//   others     nothing; a storage (kPersistent) is a leaf, whatever its id says
#pragma once

#include <vector>

#include "lib/pickle/value.h"

namespace ckpt::pickle {

template <class Function>
void each_part(const Document& document, Id id, Function&& function) {
  const Type type = document.type(id);
  if (type == Type::kCall) {
    const Call call = document.call(id);
    for (const Id part : {call.callable, call.args, call.kwargs, call.state})
      if (part != kNoId) function(part);
    for (const Id item : call.items) function(item);
    for (const Id item : call.pairs) function(item);
  } else if (type >= Type::kList && type <= Type::kDict) {
    for (const Id item : document.items(id)) function(item);
  }
}

// The storages at or below a value, each once.
std::vector<Id> storages_below(const Document& document, Id root);

}  // namespace ckpt::pickle
