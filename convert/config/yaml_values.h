// SPDX-License-Identifier: Apache-2.0
// The flat values of a YAML file, as the tree that they came from.
#pragma once

#include <string>

#include "models/config.h"
#include "models/numbers.h"

namespace ckpt::families {

// "experts.num_experts" -> {"experts": {"num_experts": …}}
Json nested_values(const Config& flat);
// The same, with lists as lists.
Json listed_values(const Config& flat);

// Of a whole file, with lists as lists. Throws input_error for a damaged one;
// `path` is for messages.
Json yaml_values(const std::string& text, const std::string& path);

}  // namespace ckpt::families
