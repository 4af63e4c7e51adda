// SPDX-License-Identifier: Apache-2.0
// Names the parameters of FSDP1's optimizer, which numbers flat units, or
// parameters of which each rank has a run. Private to this room.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "formats/runs/ranks/ranks.h"

namespace ckpt::runs {

// Assigns parameters to the shares of `ranks`. `paths`: of the ranks' files.
// `model`: in module order. Returns the reason if this fails. Returns "" if it
// succeeds; then the tensors of `ranks` are <parameter>.<state>, with `param`
// and `state`. Throws input_error for what a rank has to have and has not.
std::string name_shares(RankCatalog& ranks,
                        const std::vector<std::string>& paths,
                        std::span<const Tensor* const> model);

}  // namespace ckpt::runs
