// SPDX-License-Identifier: Apache-2.0
// States of an optimizer that no parameter of the model names. Private to this
// room.
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::runs {

// Adds a problem for states that have no parameter's name, unless one says so
// already, and a note for parameters that the model's files don't have: what is
// trained may differ from what is saved.
void say_unnamed(Catalog& catalog);

}  // namespace ckpt::runs
