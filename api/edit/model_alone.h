// SPDX-License-Identifier: Apache-2.0
// --model-only for targets that hold any tensors: what the module's strict
// load_state_dict takes, whatever the source kept beside it.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::library {

// Leaves out what is not the model's (state of training, tensors and values
// alike; a module's _extra_state is its own), and takes off the keys of a state
// dict and the wrappers of a module that names begin with, unless they were
// `renamed` as the user wants them. The result is flat. catalog.assumptions say
// what was done.
void keep_model_alone(Catalog& catalog, bool renamed);

// Removes what a script's file has of random generators: no format of a model
// has a place for it.
void leave_random_state(Catalog& catalog);

}  // namespace ckpt::library
