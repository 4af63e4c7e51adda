// SPDX-License-Identifier: Apache-2.0
// Tensors that a target's loader has from elsewhere: a head that is tied to the
// embedding, rotary frequencies that it computes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::library {

// A tied head that is stored a second time is left out, unless the target
// `repeats` it; there, both must be the same. Returns a line about what was
// left out, or "".
std::string settle_tied_head(Catalog& source, bool repeats);

// Leaves out the frequencies that the target's loader computes: they have to
// equal what it has, unless a glob of `drop` names them. Returns true if one
// does.
bool leave_frequencies(Catalog& source, std::string_view loader,
                       const std::vector<std::string>& drop);

}  // namespace ckpt::library
