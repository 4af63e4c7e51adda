// SPDX-License-Identifier: Apache-2.0
// Merges the metadata that each rank wrote separately. Private to this room.
#pragma once

#include <vector>

#include "formats/dcp/metadata.h"

namespace ckpt::dcp {

// Joins chunks of one name; equal boxes are replicas. If several ranks have an
// object, takes the first rank's (and adds a problem if they differ). Throws
// input_error if dtypes or sizes differ.
Metadata unite(std::vector<Metadata> ranks);

}  // namespace ckpt::dcp
