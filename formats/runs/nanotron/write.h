// SPDX-License-Identifier: Apache-2.0
// nanotron's step, written for another number of ranks: what its layers cut is
// cut by the same rule, the optimizer's files (and ZeRO 1's runs) follow, and
// so does what says how many ranks there are.
//
//   ranks.cc    which rank has what
//   write.cc    model/
//   states.cc   optimizer/*.pt
//   beside.cc   JSON, YAML, random/, lr_scheduler/
//
// Private to this room.
#pragma once

#include <functional>
#include <string>

#include "ckpt/layout.h"
#include "formats/runs/nanotron/nanotron.h"
#include "formats/runs/nanotron/ranks.h"

namespace ckpt::runs::nanotron {

// `catalog`: what read() made of the folder. The target's `fates` are of files
// beside the tensors, by their path in the step.
Target lay_out(const std::string& folder, const Catalog& catalog,
               const Topology& topology);

// Adds the optimizer's files; `target_of`: the tensor of that name.
void add_states(const std::string& folder, const Step& step, const Ranks& ranks,
                const std::function<Tensor&(const std::string&)>& target_of,
                Target& target);

// Adds the files that hold no tensors, and says what is of a rank.
void add_beside(const std::string& folder, const Step& step, const Ranks& ranks,
                Target& target);

}  // namespace ckpt::runs::nanotron
