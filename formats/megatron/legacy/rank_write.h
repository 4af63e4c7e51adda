// SPDX-License-Identifier: Apache-2.0
// One rank's files of the target.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/megatron/legacy/file.h"
#include "formats/megatron/legacy/groups.h"
#include "formats/megatron/legacy/plan.h"
#include "formats/megatron/legacy/states_write.h"

namespace ckpt::megatron {

class LegacyRankWriter {
 public:
  // All of them must outlive the writer; target.catalog.tensors must be
  // complete, with rules that hold.
  LegacyRankWriter(const Catalog& source, const Facts& facts,
                   const LegacyPlan& plan, Target& target);

  // model_optim_rng.pt, and distrib_optim.pt if there is one.
  void write(const LegacyStatesWriter& states, const LegacyCoordinates& at,
             const std::string& directory);

 private:
  pickle::Id add_chunk(LegacyFile& file, uint32_t v,
                       const LegacyCoordinates& at,
                       std::vector<LegacyParam>& params) const;
  pickle::Id add_tensor(LegacyFile& file, const LegacyKey& key, uint32_t v,
                        const LegacyCoordinates& at,
                        std::vector<LegacyParam>& params) const;
  pickle::Id add_value(LegacyFile& file, const LegacyKey& key,
                       const LegacyCoordinates& at) const;
  pickle::Id add_args(pickle::Document& document, const Object& args,
                      const LegacyCoordinates& at) const;
  void add_object(pickle::Document& document, pickle::Id root,
                  const Object& object, const LegacyCoordinates& at) const;

  const Catalog& source_;
  const Facts& facts_;
  const LegacyPlan& plan_;
  Target& target_;
  const bool ours_;
  std::unordered_map<std::string_view, size_t> index_;  // model tensors
};

// True if a value of the source is carried to the target. Other formats' values
// are only if they mean the same in both.
bool carries_object(const Catalog& source, const Object& object);

}  // namespace ckpt::megatron
