// SPDX-License-Identifier: Apache-2.0
// The flat order of a gradient buffer: where Megatron's distributed optimizer
// keeps each parameter of one rank, one chunk and one dtype pair.
//
//   parameters a b c d e, in model order (named_parameters)
//
//   bucket 0                   bucket 1
//   | e | gap | d   | end pad | c | b | gap | a |  end pad |
//   ^ each begins at a multiple of 64   ^ unpadded: before the end pad
//
//   1. parameters in reverse model order
//   2. each begins at the next multiple of 64 elements of the buffer (not in
//      cores before July 2024)
//   3. a bucket ends after the parameter that makes it bucket_size long; a
//      shared embedding has a bucket of its own, and the one before it ends
//      at the aligned position where the embedding would have begun
//   4. the end of a bucket is padded to a multiple of lcm(dp, 128)
//
// Files hold either padded buckets one by one, or buckets without end padding,
// one by one (dp_reshardable) or joined (distrib_optim.pt).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ckpt::megatron {

struct BufferParam {
  uint64_t numel = 0;  // of the rank's part
  // The embedding (first stage) or its copy (last stage) of a tied model spread
  // over pipeline stages.
  bool shared_embedding = false;
};

struct BufferRules {
  // Nothing: one bucket (apart from shared embeddings). That is so unless
  // gradients are reduced in parts, on the first stage's first chunk.
  std::optional<uint64_t> bucket_size;
  bool align = true;  // rule 2
  // What bucket ends are padded to: see bucket_divisor. It does not affect
  // where parameters are in their buckets as long as 64 divides it.
  uint64_t divisor = 128;
  // Cores up to 0.12: if this many ranks don't divide the position where a
  // shared embedding would begin, the bucket before it ends padded, and
  // counts as that long. 0: newer cores.
  uint64_t pad_before_shared = 0;
};

// lcm(dp, 128), and 2^16 with pad_buckets_for_high_nccl_busbw. Zero if that
// does not fit 64 bits.
uint64_t bucket_divisor(uint64_t dp, bool high_bandwidth = false);

struct BufferSlot {
  uint32_t bucket = 0;
  uint64_t begin = 0;  // elements, from the start of the bucket
  uint64_t end = 0;
};

struct BufferBucket {
  uint64_t unpadded = 0;  // elements
  uint64_t padded = 0;
  uint64_t joined = 0;  // where it begins if unpadded buckets are joined
};

struct BufferLayout {
  std::vector<BufferSlot> slots;  // of the parameters, in the order given
  std::vector<BufferBucket> buckets;
  uint64_t unpadded = 0;  // elements of all buckets: numel_unpadded
  uint64_t padded = 0;

  // Where a parameter begins if unpadded buckets are joined.
  uint64_t joined(const BufferSlot& slot) const {
    return buckets[slot.bucket].joined + slot.begin;
  }
};

// `params` in model order. Throws input_error if a position does not fit 64
// bits.
BufferLayout lay_out_buffer(std::span<const BufferParam> params,
                            const BufferRules& rules);

}  // namespace ckpt::megatron
