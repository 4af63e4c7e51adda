// SPDX-License-Identifier: Apache-2.0
// A checkpoint of another format, with OLMo-core 0.1.0's names for its parts,
// and the groups of its optimizer. Private to this folder.
#pragma once

#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::olmo_core::v1 {

// Parameters without "model.", optimizer state as state.<param>.__<state>. A
// source of olmo_core_v1 itself is returned unchanged.
Catalog review_v1(Catalog source);

// The groups of such a checkpoint, or of another container's copy of it, under
// the keys that later OLMo-cores ask for: param_groups.<i>.<option>, and the
// parameters' names as param_groups.<i>.params. A group that does not say their
// names is left as it is.
void split_groups(Catalog& source);

// Makes num_param_groups, param_group0 …, state_keys for the source's states.
// Options are found under "param_groups": a list of dicts, or values named
// param_groups.<i>.<option> or param_groups.<parameter>.<option>. Throws
// unfaithful_error if there are none.
std::vector<Object> make_groups(const Catalog& source);

}  // namespace ckpt::olmo_core::v1
