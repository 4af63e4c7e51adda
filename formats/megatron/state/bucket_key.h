// SPDX-License-Identifier: Apache-2.0
// The names of flat buffers in a distributed checkpoint, and the checkpoint's
// buffers.
//
//   chained_1.optimizer.distributed.dp_group_idx_3.gbuf_idx_0
//   └ chain ┘                       └── group ───┘ └ buffer ┘
//     .dtype_(torch.bfloat16, torch.float32).bucket_idx_2.exp_avg
//             └ parameters ┘  └ gradients ┘  └─ bucket ─┘ └state┘
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

struct BucketKey {
  // Which of the chained optimizers; nothing if there is only one.
  std::optional<uint64_t> chain;
  uint64_t group = 0;   // model-parallel rank
  uint64_t buffer = 0;  // gradient buffer of that rank
  uint64_t bucket = 0;
  std::string_view param_dtype;  // "torch.bfloat16"
  std::string_view state;        // "param", "exp_avg" …
};
std::optional<BucketKey> parse_bucket_key(std::string_view text);

struct Bucket {
  // Tensors of the catalog by their state.
  std::vector<std::pair<std::string, uint32_t>> states;
  uint64_t length = 0;  // elements of each state
};
struct Buffer {
  std::optional<DType> dtype;  // of the parameters
  std::vector<Bucket> buckets;
};
struct GroupId {
  std::optional<uint64_t> chain;
  uint64_t group = 0;
  auto operator<=>(const GroupId&) const = default;
};
// The buffers of each model-parallel rank.
using Groups = std::map<GroupId, std::vector<Buffer>>;

// Finds all of them. Buffers and buckets must count from zero without gaps, and
// the states of a bucket must have one length; else `why` says what is wrong.
std::optional<Groups> find_groups(const Catalog& catalog, std::string& why);

// "optimizer.distributed.dp_group_idx_3." with its chain.
std::string object_prefix(const GroupId& id);

}  // namespace ckpt::megatron
