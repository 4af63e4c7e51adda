// SPDX-License-Identifier: Apache-2.0
// What the objects beside the flat buffers say about them.
//
//   optimizer.distributed.dp_group_idx_0.per_bucket_numel_unpadded
//     [ {(torch.bfloat16, torch.float32): [1792, 640]}, … ]   by buffer
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/state/bucket_key.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {

// The value of an object; opens its archive if necessary. Removes the list of
// one in which torch_dist keeps values.
struct Value {
  std::shared_ptr<const pickle::Document> document;
  pickle::Id node = pickle::kNoId;
};
Value value_of(const Catalog& catalog, const Object& object);

// The objects of groups by name, "…dp_group_idx_0.optimizer".
class GroupObjects {
 public:
  explicit GroupObjects(const Catalog& catalog);

  // Null if there is none.
  const Object* find(const GroupId& group, const std::string& name) const;

  // Unpadded lengths of the buckets of each buffer, if they are stored.
  // Throws input_error if they are not lists of numbers.
  std::optional<std::vector<std::vector<uint64_t>>> unpadded(
      const GroupId& group) const;

 private:
  const Catalog& catalog_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace ckpt::megatron
