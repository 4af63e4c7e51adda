// SPDX-License-Identifier: Apache-2.0
// The boxes that a load requests.
#pragma once

#include <set>
#include <span>
#include <string>

#include "ckpt/sharded.h"

namespace ckpt::library {

// The checkpoint of a load. `asked`: the names of all requests; no other tensor
// is located in the files. Throws as options.strict says, and puts the names to
// return into `result`. Only unexpected names of `own` count.
Catalog open_for(const std::string& path, std::span<const LoadRequest> own,
                 const std::set<std::string>& asked, const LoadOptions& options,
                 LoadResult& result);

// The box, zero beyond the stored shape. Throws usage_error for a box outside
// it, unfaithful_error for another global shape.
TensorData read_request(const Catalog& catalog, const Tensor& tensor,
                        const LoadRequest& request);

}  // namespace ckpt::library
