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
#pragma once

#include <memory>
#include <vector>

#include "formats/format.h"

namespace ckpt::runs {

std::vector<FormatOption> options();
// Another trainer's step has only data-parallel ranks, as many as the source
// unless requested otherwise (Traits::settle).
void settle_options(const Catalog& source, const formats::Asked& asked,
                    Layout& layout);

std::unique_ptr<formats::Reader> make_run_reader();
std::unique_ptr<formats::Writer> make_run_writer();

}  // namespace ckpt::runs
