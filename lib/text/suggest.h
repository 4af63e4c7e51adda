// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the nearest of some names, for error hints.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::text {

// The candidate with the smallest edit distance, or "" if none is near
// (at most a third of the length apart).
std::string nearest(std::string_view name,
                    const std::vector<std::string>& candidates);

// Of dotted names: the one that ends like `name`, in eight characters at least,
// or is spelt like it; "" if none does.
std::string nearest_ending(std::string_view name,
                           const std::vector<std::string>& candidates);

}  // namespace ckpt::text
