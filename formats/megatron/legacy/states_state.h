// SPDX-License-Identifier: Apache-2.0
// The state of LegacyStatesWriter. Private to states_write.cc and
// flat_write.cc.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/megatron/legacy/states.h"
#include "formats/megatron/legacy/states_write.h"

namespace ckpt::megatron {

inline constexpr std::string_view kMainWeights = "fp32_param";

struct LegacyStatesWriter::State {
  const Catalog& source;
  const Facts& facts;
  const LegacyPlan& plan;
  const Catalog& target;
  const Object* shell = nullptr;  // the object "optimizer"
  std::vector<pickle::Id> subs;   // its optimizers
  bool flat = false;
  bool by_chunk = false;  // an optimizer for each chunk
  bool decay_qk_norms = false;
  std::vector<std::pair<DType, DType>> dtypes;
  // parameter -> its states: tensors of the target
  std::unordered_map<std::string, std::vector<size_t>> states;

  const pickle::Document& document() const { return *shell->document; }
  std::vector<std::vector<LegacyParam>> split(
      const std::vector<LegacyParam>& params) const;
  size_t source_of(size_t i, size_t count) const;
  pickle::Id add_sub(LegacyFile& file, pickle::Id sub,
                     const std::vector<LegacyParam>& params,
                     const LegacyCoordinates& at, bool mark_experts) const;
  void add_members(LegacyFile& file, pickle::Id states,
                   const std::vector<LegacyParam>& members, int64_t first,
                   const LegacyCoordinates& at,
                   std::vector<pickle::Id>& mains) const;
  pickle::Id add_state(LegacyFile& file, const LegacyParam& param, size_t index,
                       const LegacyCoordinates& at) const;
  const std::vector<size_t>& states_of(const LegacyParam& param) const;
  void check_merge() const;
  pickle::Id add_buffers(LegacyFile& file,
                         const std::vector<LegacyParam>& params,
                         const std::vector<LegacyParam>& all,
                         const LegacyCoordinates& at) const;
  pickle::Id add_buffer(LegacyFile& file, const LegacyBuffer& buffer,
                        const BufferLayout& layout,
                        const LegacyCoordinates& at) const;
  uint64_t slot_of(const LegacyParam& param,
                   const LegacyCoordinates& at) const {
    return at.tp % plan.ranks_of(param.expert);
  }
};

}  // namespace ckpt::megatron
