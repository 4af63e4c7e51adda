// SPDX-License-Identifier: Apache-2.0
// Merges the metadata that each rank wrote on its own. Private to this room.
#pragma once

#include <vector>

#include "formats/dcp/metadata.h"

namespace ckpt::dcp {

// Chunks of one name are put together: equal boxes are replicas. If several
// ranks have an object, the first rank's is taken (a problem says so if they
// differ). Throws input_error if dtypes or sizes differ.
Metadata unite(std::vector<Metadata> ranks);

}  // namespace ckpt::dcp
