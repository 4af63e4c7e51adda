// SPDX-License-Identifier: Apache-2.0
// A family defined by how it differs from another: "extends": "llama".
//
//   base   {"vars": {"$L": …, "$F": …}, "dialects": {"mcore": …, "meta": …}}
//   mine   {"vars": {"$F": …}, "dialects": {"mcore": {"rules": [R]}}}
//   read   {"vars": {"$L": …, "$F": mine}, "dialects": {"mcore": base with R}}
#pragma once

#include "models/located.h"

namespace ckpt::families {

// "wraps": [["model.", "language_model.model."]] in `mine` renames the base's
// names in hf: the base is a part of the model.
//
// Completes `mine` from `base`, a whole family. Objects are merged by key, null
// removes a key, other values replace. Rules are merged by their "to": those of
// `mine` replace all that the base has for that tensor, in their place; "hf":
// null removes the rule. Only dialects that `mine` names are inherited, and
// "vllm" only if `mine` has it, too. Errors place inherited parts at the line
// of "extends".
void inherit(Located& mine, const Located& base);

}  // namespace ckpt::families
