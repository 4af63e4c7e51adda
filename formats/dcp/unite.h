// SPDX-License-Identifier: Apache-2.0
// One index from those that ranks wrote each for itself. Private to this room.
#pragma once

#include <vector>

#include "formats/dcp/metadata.h"

namespace ckpt::dcp {

// The chunks of equal names are put together: equal boxes are replicas. Of
// objects that several ranks have, the first one's is taken (a problem says
// so if they differ). Throws input_error if dtypes or sizes differ.
Metadata unite(std::vector<Metadata> ranks);

}  // namespace ckpt::dcp
