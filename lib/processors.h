// SPDX-License-Identifier: Apache-2.0
// How many processors this process may use.
#pragma once

#include <cstdint>

namespace ckpt {

// Those of its affinity mask, which schedulers (Slurm, Kubernetes' static
// policy, taskset) set to a share of the machine; at least one.
uint32_t processors();

}  // namespace ckpt
