// SPDX-License-Identifier: Apache-2.0
// What a plain tensor in the files of several ranks is, where neither the files
// nor a family say it: what --shard-dims says; else unknown (lib/unruled.h).
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/unruled.h"
#include "models/rules.h"

namespace ckpt::formats {

// `tensor` has the shape of one rank's part and a piece of all of it for each
// rank in `ranks`, of `count` in all (0: file names don't say). Throws
// usage_error for a rule that does not fit, unfaithful_error if it is cut and a
// rank lacks its part.
void share_by_rule(Tensor& tensor, const std::vector<size_t>& ranks,
                   uint64_t count, const families::Rules& user,
                   Catalog& catalog);

}  // namespace ckpt::formats
