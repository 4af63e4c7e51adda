// SPDX-License-Identifier: Apache-2.0
// Translates a checkpoint into another dialect's names and arrangement. No byte
// moves: the source's pieces become those of the target's tensors, in one plan
// with the target's topology.
//
//   source ─► its dialect ─► hf ─► the target's dialect ─► Writer::review
//             └─ each rule undone ┘└─ each rule done ─┘
//
// Complete or refused: every tensor of the source is used and every tensor of
// the target is made, or the error lists the exceptions.
#pragma once

#include "ckpt/catalog.h"
#include "convert/options.h"

namespace ckpt::families {

// The source in the dialect options.to, with its configuration: config.json,
// params.json or model.yaml as a sidecar without a file, args as an object. The
// assumptions get the numbers with their sources. Throws unfaithful_error
// listing what does not fit, usage_error for an unknown family.
Catalog translate(Catalog source, const TranslateOptions& options);

}  // namespace ckpt::families
