// SPDX-License-Identifier: Apache-2.0
// Adapters with names of their own, in folders of a step
// ("{*}/adapter_model.safetensors"): its model, unless the step has lost
// another, whose adapter that was.
#pragma once

#include <string>

#include "ckpt/catalog.h"

namespace ckpt::runs {

// The trace of a whole model in a step's folder, or in the neighbouring step's
// (`beside`, "" if there is none): "generation_config.json in it"; "" if there
// is none.
std::string trace_of_model(const std::string& folder,
                           const std::string& beside);

// Throws input_error if the optimizer trains more matrices than adapters have.
void check_trained(const std::string& folder, const Catalog& catalog);

}  // namespace ckpt::runs
