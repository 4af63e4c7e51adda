// SPDX-License-Identifier: Apache-2.0
// Optimizer files of a target, in the encodings of optimizer.h.
#pragma once

#include <string>
#include <vector>

#include "formats/fairseq2/file_builder.h"

namespace ckpt::fairseq2 {

// Writes the optimizer tensors of target.catalog (which have their tp rules)
// below `directory`. `order[p]` has the parameters of stage p, in the model's
// order. Throws unfaithful_error if numbers can't be assigned, or if a state
// can't be cut for the topology.
void write_optimizer(const Catalog& source, const Topology& topology,
                     const std::vector<std::vector<std::string>>& order,
                     const std::string& directory, Target& target);

}  // namespace ckpt::fairseq2
