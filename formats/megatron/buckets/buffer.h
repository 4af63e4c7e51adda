// SPDX-License-Identifier: Apache-2.0
// Finds out if a stored gradient buffer holds given parameters, in that order.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/buckets/model.h"
#include "formats/megatron/state/bucket_key.h"
#include "formats/megatron/state/buffers.h"
#include "formats/megatron/state/group_objects.h"

namespace ckpt::megatron {

struct BufferRef {
  GroupId group;
  uint32_t index = 0;  // of the group's buffers
};

class BufferFitter {
 public:
  BufferFitter(const Catalog& catalog, const Groups& groups);

  // Where they are. Nothing if lengths or the edges of stored chunks contradict
  // it; why() says so. `ranks` share the buffer; 0: unknown.
  std::optional<BufferLayout> fit(const BufferRef& ref,
                                  std::span<const RankParam> params,
                                  uint64_t ranks);

  const Buffer& buffer(const BufferRef& ref) const {
    return groups_.at(ref.group)[ref.index];
  }
  const std::string& why() const { return why_; }

 private:
  using Lengths = std::vector<std::vector<uint64_t>>;

  std::optional<BufferLayout> try_rules(const BufferRef& ref,
                                        std::span<const BufferParam> params,
                                        BufferRules rules, uint64_t ranks);
  const std::vector<uint64_t>* stored_lengths(const BufferRef& ref);
  bool agrees(const BufferRef& ref, const BufferLayout& layout, uint64_t ranks);
  bool edges_agree(const BufferRef& ref, const BufferLayout& layout);
  const std::vector<uint64_t>& edges(uint32_t tensor);

  const Catalog& catalog_;
  const Groups& groups_;
  GroupObjects objects_;
  std::map<GroupId, std::optional<Lengths>> lengths_;
  std::map<uint32_t, std::vector<uint64_t>> edges_;  // by tensor
  bool edges_matter_ = true;
  std::string why_;
};

}  // namespace ckpt::megatron
