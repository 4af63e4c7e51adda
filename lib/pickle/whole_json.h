// SPDX-License-Identifier: Apache-2.0
// Canonical JSON (lib/pickle/json.h) for programs that work on with the value:
// nothing is left out, however large.
#pragma once

#include <string>

#include "lib/pickle/value.h"

namespace ckpt::pickle {

// Throws unfaithful_error, naming `name`, for a value that nests deeper than
// to_json shows.
std::string whole_json(const Document& document, Id root,
                       const std::string& name);

}  // namespace ckpt::pickle
