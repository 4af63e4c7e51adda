// SPDX-License-Identifier: Apache-2.0
// The parameters of a universal checkpoint: one archive per state.
//
//   zero/NAME/fp32.pt      {"param": tensor, "cat_dim": 0, …}, or, of ZeRO 3,
//                          the tensor alone, flat and without its shape
//   zero/NAME/step.pt      a scalar
//   zero/optimizer_state.pt  what is common: param_groups, loss scaler
#pragma once

#include <map>
#include <string>

#include "formats/deepspeed/assemble.h"
#include "formats/format.h"

namespace ckpt::deepspeed {

// `shapes`: those of whole parameters, for the ones stored flat.
void add_universal(const std::string& directory,
                   const std::map<std::string, Shape>& shapes,
                   const formats::ReadOptions& options, Assembler& assembler,
                   Catalog& catalog);

}  // namespace ckpt::deepspeed
