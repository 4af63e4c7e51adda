// SPDX-License-Identifier: Apache-2.0
// One rank's optimizer state, in the source's form: numbered parameters, or
// flat buffers in a separate file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/megatron/legacy/file.h"
#include "formats/megatron/legacy/groups.h"
#include "formats/megatron/legacy/plan.h"

namespace ckpt::megatron {

class LegacyStatesWriter {
 public:
  // Throws unfaithful_error if the source's optimizer can't be rebuilt.
  LegacyStatesWriter(const Catalog& source, const Facts& facts,
                     const LegacyPlan& plan, const Target& target);
  ~LegacyStatesWriter();

  // False if no optimizer is written.
  bool any() const;
  // The value of "optimizer" for a rank. `params` are in model order, with the
  // model's names; index is the tensor's in the catalog.
  pickle::Id add_optimizer(LegacyFile& file,
                           const std::vector<LegacyParam>& params,
                           const LegacyCoordinates& at) const;
  // Writes distrib_optim.pt; returns false if this rank has none.
  bool write_flat(Target& target, const std::vector<LegacyParam>& params,
                  const LegacyCoordinates& at, const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ckpt::megatron
