// SPDX-License-Identifier: Apache-2.0
// Which optimizer, parameter group and gradient buffer a rank's parameter is
// in. The files only number parameters; the numbers follow from the model's
// order, from weight decay and from which ones are experts'.
//
//   [dense optimizer, experts' optimizer]
//      group 0: with weight decay    ids 0 1 2 …    in the model's order
//      group 1: without                  … 7 8      vectors and biases
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/dtype.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/state/buffers.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {

// A parameter of one rank.
struct LegacyParam {
  std::string name;  // the rank's own
  uint32_t chunk = 0;
  size_t index = 0;  // the caller's
  DType dtype = DType::f32;
  Dims shape;
  uint64_t numel = 0;
  bool expert = false;
  bool shared = false;  // an embedding that two pipeline stages hold
};

// The parameters of each of `count` optimizers: one; dense and experts; or one
// per chunk, with or without one for experts. Nothing if it can't be told.
std::optional<std::vector<std::vector<LegacyParam>>> split_optimizers(
    std::span<const LegacyParam> params, size_t count, size_t chunks);

// What a group's entries say about its members.
struct GroupTraits {
  bool no_decay = false;
  bool expert = false;
  bool decoupled = false;  // a learning rate for embedding and output layer
  friend bool operator==(const GroupTraits&, const GroupTraits&) = default;
};
struct GroupRules {
  std::vector<GroupTraits> groups;
  bool decay_qk_norms = false;  // apply_wd_to_qk_layernorm
};
// `groups` is the list param_groups.
GroupRules read_groups(const pickle::Document& document, pickle::Id groups);

// The members of each group, in order. Leaves out parameters of a kind that no
// group has.
std::vector<std::vector<LegacyParam>> split_groups(
    std::span<const LegacyParam> params, const GroupRules& rules);

// One gradient buffer: parameters of one chunk and dtype, in model order.
struct LegacyBuffer {
  uint32_t chunk = 0;
  DType dtype = DType::f32;
  std::vector<LegacyParam> params;
};
std::vector<LegacyBuffer> split_buffers(std::span<const LegacyParam> params);

// `numel` is for the whole chunk, including experts; dp counts context parallel
// ranks, too.
BufferRules buffer_rules(const Facts& facts, uint32_t pp, uint32_t chunk,
                         uint64_t numel, uint64_t dp);
std::vector<BufferParam> buffer_params(const LegacyBuffer& buffer);

}  // namespace ckpt::megatron
