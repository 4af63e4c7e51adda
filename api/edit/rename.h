// SPDX-License-Identifier: Apache-2.0
// --rename RULES.json: new names for tensors.
//
//   {"model.layers.*.weight": "decoder.layers.*.weight",   each * of the left
//    "lm_head.weight": "output.weight"}                    fills one of the
//                                                          right, in order
//
// The first rule that matches the whole name wins; names that match none stay.
#pragma once

#include <string>

#include "ckpt/catalog.h"

namespace ckpt::library {

// Throws usage_error for an unusable rule file, unfaithful_error if two tensors
// would get one name or a rule matches nothing.
void rename(Catalog& catalog, const std::string& rules_file);

}  // namespace ckpt::library
