// SPDX-License-Identifier: Apache-2.0
// Steps that are another format's checkpoints inside a trainer's folder: that
// format's reader reads them, and its writer writes them again.
//
//   step_20/                          global_step_4/
//     policy/weights/iter_0000020/      actor/dist_ckpt/      torch_dist
//                                       actor/huggingface/    config, tokenizer
//                                       critic/dist_ckpt/
#pragma once

#include "formats/format.h"
#include "formats/runs/find/found.h"

namespace ckpt::runs {

// If there are several roles, names begin with the role, as in any step.
Catalog read_sole(const Found& found, const formats::ReadOptions& options);

}  // namespace ckpt::runs
