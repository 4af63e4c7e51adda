// SPDX-License-Identifier: Apache-2.0
// Values that would run code where they are loaded do not go into new files,
// unless somebody asks for it (--keep-unknown-globals).
#pragma once

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::scan {

// Takes the objects out of the catalog that hold a global which is not
// harmless (harmless.h), and the nesting of tensors that lie inside of one;
// each is a warning in its problems.
void leave_out_unknown(Catalog& source);

// What the target's files are going to hold besides payload, looked at as
// loaders would: sidecars with such a global, or of which nobody can tell, are
// left out, a warning each.
// Throws unsafe_error, naming file and global, for one in what was laid out or
// is carried over.
void check_unknown(const Catalog& source, Target& target);

}  // namespace ckpt::scan
