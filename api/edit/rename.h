// SPDX-License-Identifier: Apache-2.0
// --rename RULES: new names for tensors, in a file or on the command line.
//
//   {"model.layers.*.weight": "decoder.layers.*.weight",   each * of the left
//    "lm_head.weight": "output.weight"}                    fills one of the
//                                                          right, in order
//
//   model.=decoder.,lm_head.=output.                       prefixes
//
// The first rule that matches the whole name wins; names that match none stay.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::library {

// True for rules themselves, false for the name of a file of them.
bool is_rule_text(const std::string& text);

// Throws usage_error for an unusable rule file, unfaithful_error if two tensors
// would get one name or a rule matches nothing.
// Returns the names that are new.
std::vector<std::string> rename(Catalog& catalog, const std::string& rules);

}  // namespace ckpt::library
