// SPDX-License-Identifier: Apache-2.0
// A family that says how it differs from another: "extends": "llama".
//
//   base   {"vars": {"$L": …, "$F": …}, "dialects": {"mcore": …, "meta": …}}
//   mine   {"vars": {"$F": …}, "dialects": {"mcore": {"rules": [R]}}}
//   read   {"vars": {"$L": …, "$F": mine}, "dialects": {"mcore": base with R}}
#pragma once

#include "models/located.h"

namespace ckpt::families {

// "wraps": [["model.", "language_model.model."]] of `mine` says what the base's
// names in hf are there: the base is a part of the model.
//
// Completes `mine` with what `base`, a whole family, has. Objects are merged
// by key, null takes a key away, other values replace. Rules are merged by
// their "to": those of `mine` replace all that the base has for that tensor,
// at their place; "hf": null takes the rule away. Of the dialects come those
// alone that `mine` names. What is inherited stands at the line of "extends".
void inherit(Located& mine, const Located& base);

}  // namespace ckpt::families
