// SPDX-License-Identifier: Apache-2.0
// Keeps out of new files the values that would run code when loaded, unless the
// user asks for them (--keep-unknown-globals).
#pragma once

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::scan {

// Removes from the catalog the objects that hold a global that is not harmless
// (harmless.h), and the nesting of tensors inside such an object, with a
// warning for each.
void leave_out_unknown(Catalog& source);

// Checks, as loaders would see it, what the target's files will hold besides
// payload. Sidecars with such a global, or that can't be judged, are left out
// with a warning each. Throws unsafe_error, naming file and global, for one in
// what was laid out or is carried over.
void check_unknown(const Catalog& source, Target& target);

}  // namespace ckpt::scan
