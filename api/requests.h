// SPDX-License-Identifier: Apache-2.0
// Boxes that a load asks for.
#pragma once

#include <set>
#include <span>
#include <string>

#include "ckpt/sharded.h"

namespace ckpt::library {

// The checkpoint of a load. `asked`: the names of all requests; no other
// tensor is looked for in the files. Throws as options.strict asks, and sets
// what is to be returned of names in `result`. `own` are the requests whose
// unexpected names count.
Catalog open_for(const std::string& path, std::span<const LoadRequest> own,
                 const std::set<std::string>& asked, const LoadOptions& options,
                 LoadResult& result);

// The box, or what is zero beyond the stored shape. Throws usage_error for no
// such box, unfaithful_error for another global shape.
TensorData read_request(const Catalog& catalog, const Tensor& tensor,
                        const LoadRequest& request);

}  // namespace ckpt::library
