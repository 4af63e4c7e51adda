// SPDX-License-Identifier: Apache-2.0
// A step as its own: part of one, or one with other names, would be taken for
// a whole step by its trainer. Private to this room.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::runs {

// Throws unfaithful_error unless `given` has the tensors of `whole` that are
// `inside` containers, under their names and with their dtypes.
void check_whole_step(const Catalog& given, const Catalog& whole,
                      const std::vector<bool>& inside,
                      const std::string& trainer);

// A step that is one file, as such a file: the same bytes under another name.
// Throws unfaithful_error for ranks, which it does not have, and for a DST that
// is named like a folder.
Target lay_out_own_file(const Catalog& source, const Layout& layout);

}  // namespace ckpt::runs
