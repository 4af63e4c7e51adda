// SPDX-License-Identifier: Apache-2.0
// A step written again as its trainer's own loader takes it, for another
// number of ranks.
//
//   step/                             DST/  (--dp 3)
//     pytorch_model_fsdp_0/  DCP       laid out by dcp's writer, for 3 ranks
//     optimizer_0/           DCP       the same
//     scheduler.pt                     copied
//     rng_state_0.pth _1               left out: they are of 2 ranks
//
// Containers without ranks (model.safetensors, optimizer.pt) come out byte for
// byte. What a change of ranks means for the other files is in trainers.json.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace ckpt::runs {

inline constexpr std::string_view kRunFormat = "run";

// The option of the format: whose step it is to be; not set: the source's.
inline constexpr std::string_view kTrainer = "trainer";
std::vector<FormatOption> options();
// Another trainer's step has data-parallel ranks alone, as many as the source
// if nothing else is asked for (Traits::settle).
void settle_options(const Catalog& source, const formats::Asked& asked,
                    Layout& layout);

std::unique_ptr<formats::Reader> make_run_reader();
std::unique_ptr<formats::Writer> make_run_writer();

}  // namespace ckpt::runs
