// SPDX-License-Identifier: Apache-2.0
// A run as one nested state dict, as DCP and torch files hold it:
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
// the catalog that nesting. Returns catalogs that are not a run unchanged.
// Opens objects.
Catalog as_state_dict(Catalog source);

// Keeps only the model, for formats that hold nothing else; a problem says what
// is left out. Returns catalogs that are not a run unchanged.
Catalog model_only(Catalog source);
// The same for any catalog.
Catalog without_optimizer(Catalog source);

// The same for one file of such a format; catalogs for others are returned
// unchanged.
// `scripts`: of what a script saved in one file, too.
Catalog for_one_file(Catalog source, std::string_view format, bool scripts);

// True if the optimizer is named in another format than the model beside it
// (verl: weights in transformers' names, optimizer in Megatron's) and the
// target's format has no place for it: then it is no reason to keep the model's
// names.
bool has_foreign_optimizer(const Catalog& source, std::string_view format);

}  // namespace ckpt::runs
