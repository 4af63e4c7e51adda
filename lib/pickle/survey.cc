// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/survey.h"

#include <algorithm>

namespace ckpt::pickle {
namespace {

template <class F>
void for_each_part(const Document& document, Id id, F f) {
  const Type type = document.type(id);
  if (type != Type::kCall) {
    if (type >= Type::kList && type != Type::kGlobal)
      std::ranges::for_each(document.items(id), f);
    return;
  }
  const Call call = document.call(id);
  for (const Id part : {call.callable, call.args, call.kwargs, call.state}) {
    if (part != kNoId) f(part);
  }
  std::ranges::for_each(call.items, f);
  std::ranges::for_each(call.pairs, f);
}

}  // namespace

PerValue survey(const Document& document, Id root) {
  struct Step {
    Id id;
    bool leave;
  };
  PerValue marks(document, root, 0);
  std::vector<Step> pending{{root, false}};
  while (!pending.empty()) {
    const auto [id, leave] = pending.back();
    pending.pop_back();
    uint32_t& mark = marks[id];
    if (leave) {
      mark &= ~kOnPath;
      continue;
    }
    if ((mark & kOnPath) != 0) mark |= kReached;
    if ((mark & kCount) < 2) ++mark;
    if ((mark & kCount) == 2 || document.type(id) < Type::kList) continue;
    mark |= kOnPath;
    pending.push_back({id, true});
    for_each_part(document, id, [&](Id part) {
      pending.push_back({part, false});
    });
  }
  return marks;
}

}  // namespace ckpt::pickle
