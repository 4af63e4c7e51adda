// SPDX-License-Identifier: Apache-2.0
// Rewrites a step in the form that its trainer's own loader takes, for another
// number of ranks.
//
//   step/                             DST/  (--dp 3)
//     pytorch_model_fsdp_0/  DCP       laid out by dcp's writer, for 3 ranks
//     optimizer_0/           DCP       the same
//     scheduler.pt                     copied
//     rng_state_0.pth _1               left out: they are of 2 ranks
//
// Containers without ranks (model.safetensors, optimizer.pt) come out byte for
// byte. trainers.json says what a change of ranks means for the other files.
// Private to this room.
#pragma once

#include <string>
#include <vector>

#include "ckpt/layout.h"
#include "formats/runs/read/containers.h"

namespace ckpt::runs {

// Throws unfaithful_error if it is no trainer's.
const std::string& trainer_of(const Catalog& source);

// The step's containers, as their readers return them.
Whole read_again(const Catalog& source);

// By tensor: whether a container has it, in a place of its own (same_file.h).
// Whatever has not is carried with its file.
std::vector<bool> in_containers(Whole& whole);

// Throws unfaithful_error for a part of a step, and for what is not written for
// other ranks.
Target rewrite(const Catalog& source, const Layout& layout);

}  // namespace ckpt::runs
