// SPDX-License-Identifier: Apache-2.0
// The files of tensor-parallel ranks and pipeline stages, each with a plain
// state dict: model_tp0_pp1.pt. Which of a tensor's dimensions the ranks share
// is what a family's dialect says ("tp" of its rules); a stage counts its
// layers from 0.
//
//   tp 0, stage 0  layers.0.wo [32, 16] ─┬─►  layers.0.wo [32, 32]
//   tp 1, stage 0  layers.0.wo [32, 16] ─┘
//   tp 0, stage 1  layers.0.wo [32, 16] ─┬─►  layers.1.wo [32, 32]
//   tp 1, stage 1  layers.0.wo [32, 16] ─┘
//
// Transformers' names are shared as Megatron shares what is made of them;
// config.json says of which family they are. Their stages count layers from 0,
// or on.
//
// Private to this room.
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/runs/find/trainer.h"

namespace ckpt::runs {

// Names stay as they are in the files, but for the layers' numbers. Throws
// input_error for a file or a tensor that some rank lacks, unfaithful_error for
// names of a stage that no rule has.
Catalog read_parts(const std::string& folder, const Source& source,
                   const formats::ReadOptions& options);

}  // namespace ckpt::runs
