// SPDX-License-Identifier: Apache-2.0
// A run as one nested state dict, which DCP and torch files hold:
//
//   {"model.layers.0.w": tensor, …                 the model, at the top
//    "optimizer": {"state": {<parameter>: {<state>: tensor}},
//                  "param_groups": […]},
//    "scheduler": {…}, "rng_state_0": {…}, …}      objects by their names
#pragma once

#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::runs {

// Names an optimizer's tensors optimizer.state.<parameter>.<state> and gives
// the catalog that nesting. Catalogs of no run are left as they are. Opens
// objects.
Catalog as_state_dict(Catalog source);

// The model alone, for formats that hold nothing else: says in a problem what
// is left out. Catalogs of no run are left as they are.
Catalog model_only(Catalog source);

// True if the optimizer has the names of another format than the model beside
// it (verl's weights of transformers, its optimizer of Megatron), and the
// target's format has no place for it: no reason to keep the model's names.
bool has_foreign_optimizer(const Catalog& source, std::string_view format);

}  // namespace ckpt::runs
