// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/rank_objects.h"

#include <map>

namespace ckpt::megatron {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

bool is_rank_key(std::string_view key) {
  for (const std::string_view known :
       {"rng_state", "random_rng_state", "np_rng_state", "torch_rng_state",
        "cuda_rng_state", "rng_tracker_states", "rerun_state_machine"})
    if (key == known) return true;
  return false;
}

std::vector<Id> optimizers_in(const Document& document, Id node) {
  if (document.is(node, Type::kList)) {
    const auto items = document.items(node);
    return {items.begin(), items.end()};
  }
  const auto pairs = document.as_pairs(node);
  std::map<int64_t, Id> numbered;
  bool mark = false;  // of coalesced buckets: then numbers are buffers
  for (size_t i = 0; pairs && i < pairs->size(); i += 2) {
    if (document.is((*pairs)[i], Type::kInt))
      numbered[document.integer((*pairs)[i])] = (*pairs)[i + 1];
    else
      mark = true;
  }
  // {0: {dtype: …}} of the first distributed optimizers are buffers, too.
  const bool buffers =
      !numbered.empty() &&
      document.find(numbered.begin()->second, "optimizer") == kNoId &&
      document.find(numbered.begin()->second, "param_groups") == kNoId;
  if (mark || buffers || numbered.empty()) return {node};
  std::vector<Id> all;
  for (const auto& [number, value] : numbered) all.push_back(value);
  return all;
}

Id inner_optimizer(const Document& document, Id node) {
  for (const char* key : {"optimizer", "optimizer_state_dict"})
    if (const Id inner = document.find(node, key); inner != kNoId) return inner;
  return node;
}

}  // namespace ckpt::megatron
