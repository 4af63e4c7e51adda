// SPDX-License-Identifier: Apache-2.0
// One rank's optimizer state in a legacy Megatron checkpoint, by the names of
// the rank's parameters.
//
//   without the distributed optimizer, in model_optim_rng.pt
//     {optimizer: {state: {0: {exp_avg, exp_avg_sq}, …}, param_groups: […]},
//      fp32_from_fp16_params: [[tensor, …], …], grad_scaler}     16-bit models
//     {state, param_groups}                                      fp32 models
//   with it, distrib_optim.pt: one flat tensor for each state (buffers.h)
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/megatron/legacy/groups.h"
#include "formats/megatron/legacy/rank.h"
#include "formats/megatron/state/rank_objects.h"

namespace ckpt::megatron {

struct LocalState {
  uint32_t chunk = 0;
  size_t entry = 0;  // of the chunk: the parameter
  std::string state;
  LocalTensor tensor;
  bool whole = false;  // a step: the same on all ranks, whatever the cut
};

struct LegacyStates {
  enum class Form : uint8_t { kNone, kPlain, kFlat };
  Form form = Form::kNone;
  std::vector<LocalState> states;
  // Flat: the dtypes of parameters and their gradients, in order of appearance.
  std::vector<std::pair<DType, DType>> dtypes;
};

// State in an unknown form becomes one of catalog.problems. Throws input_error
// if numbers and sizes contradict each other.
LegacyStates read_legacy_states(const LegacyRank& rank, bool tied,
                                Catalog& catalog,
                                const formats::ReadOptions& options);

// The parameters of a rank: tensors that are not buffers, in model order.
std::vector<LegacyParam> legacy_params(const LegacyRank& rank, bool tied);

// Reads distrib_optim.pt of a rank that has one (flat.cc).
void read_flat_states(const LegacyRank& rank,
                      const std::vector<LegacyParam>& params, Catalog& catalog,
                      const formats::ReadOptions& options, LegacyStates& out);

// As split_optimizers, but throws input_error.
std::vector<std::vector<LegacyParam>> split_or_throw(
    const std::vector<LegacyParam>& params, size_t count,
    const LegacyRank& rank, const std::string& path);

// Reports once that weights are read and optimizer state is not.
void tell_unread(Catalog& catalog, const std::string& path,
                 const std::string& what);

}  // namespace ckpt::megatron
