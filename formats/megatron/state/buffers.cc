// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/state/buffers.h"

#include <numeric>

#include "ckpt/box.h"
#include "ckpt/error.h"

namespace ckpt::megatron {
namespace {

uint64_t add(uint64_t a, uint64_t b) {
  const auto sum = checked_add(a, b);
  if (!sum)
    throw input_error({}, "a gradient buffer of more than 2^64 elements");
  return *sum;
}

uint64_t round_up(uint64_t value, uint64_t multiple) {
  const uint64_t over = multiple ? value % multiple : 0;
  return over ? add(value, multiple - over) : value;
}

class Builder {
 public:
  explicit Builder(const BufferRules& rules) : rules_(rules) {}

  BufferSlot place(const BufferParam& param) {
    if (rules_.align) at_ = round_up(at_, 64);
    if (param.shared_embedding && members_) {
      const uint64_t ranks = rules_.pad_before_shared;
      if (ranks && at_ % ranks) at_ = round_up(at_, rules_.divisor);
      close();
    }
    BufferSlot slot{static_cast<uint32_t>(layout_.buckets.size()), at_ - start_,
                    0};
    at_ = add(at_, param.numel);
    slot.end = at_ - start_;
    ++members_;
    const bool full = rules_.bucket_size && slot.end >= *rules_.bucket_size;
    if (full || param.shared_embedding) close();
    return slot;
  }

  BufferLayout finish(std::vector<BufferSlot> slots) {
    if (members_) close();
    layout_.slots = std::move(slots);
    layout_.padded = start_;
    return std::move(layout_);
  }

 private:
  void close() {
    const uint64_t unpadded = at_ - start_;
    const uint64_t end = round_up(at_, rules_.divisor);
    layout_.buckets.push_back({unpadded, end - start_, layout_.unpadded});
    layout_.unpadded += unpadded;  // <= start_
    start_ = at_ = end;
    members_ = 0;
  }

  const BufferRules& rules_;
  BufferLayout layout_;
  uint64_t start_ = 0;  // of the bucket, in the padded buffer
  uint64_t at_ = 0;     // end of the last parameter, likewise
  size_t members_ = 0;  // of the bucket
};

}  // namespace

uint64_t bucket_divisor(uint64_t dp, bool high_bandwidth) {
  const uint64_t base = high_bandwidth ? uint64_t{1} << 16 : 128;
  if (dp == 0) return base;
  return checked_mul(base / std::gcd(base, dp), dp).value_or(0);
}

BufferLayout lay_out_buffer(std::span<const BufferParam> params,
                            const BufferRules& rules) {
  Builder builder(rules);
  std::vector<BufferSlot> slots(params.size());
  for (size_t i = params.size(); i-- > 0;) slots[i] = builder.place(params[i]);
  return builder.finish(std::move(slots));
}

}  // namespace ckpt::megatron
