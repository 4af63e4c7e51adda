// SPDX-License-Identifier: Apache-2.0
// What a legacy Megatron checkpoint holds besides the tensors of the model and
// the optimizer, as objects of the catalog: for people and for the writer.
//
//   args, checkpoint_version, …     as the first rank has them
//   rng_state.mp_rank_00_001        of each rank; "rng_state" if there is one
//   optimizer                       without its tensors and numbers
//   distrib_optim.dtypes            [(param dtype, grad dtype)]
//   model.keys                      the state dicts' keys, in order:
//                                   [[(path, kind, value), …] per chunk]
//   model._extra_state.mp_rank_…    {name: state} of FP8 modules
//
// Values that contain storages (random states, loss scales) are copied into
// their own documents, with the bytes inside.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/legacy/numbering.h"
#include "formats/megatron/legacy/states.h"
#include "formats/megatron/state/rank_objects.h"

namespace ckpt::megatron {

void add_legacy_objects(const std::vector<LegacyRank>& ranks,
                        const std::vector<GlobalChunk>& order,
                        const LegacyNumbering& numbering,
                        const std::vector<std::pair<DType, DType>>& dtypes,
                        Catalog& catalog);

}  // namespace ckpt::megatron
