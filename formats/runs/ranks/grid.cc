// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks/grid.h"

#include "ckpt/error.h"

namespace ckpt::runs {

Grid grid_of(uint32_t ranks, std::optional<uint32_t> fsdp_size,
             const std::string& path) {
  if (!fsdp_size || *fsdp_size >= ranks)
    return {.replicas = 1, .shards = ranks};
  const uint32_t width = *fsdp_size;
  if (width < 2)
    throw unfaithful_error({path, {}},
                           "a mesh of {} x {}: FSDP shards nothing over one "
                           "rank, and saves other files then",
                           ranks, width)
        .with_hint("--fsdp-size 2 or more; --dp 1 writes one rank's files");
  if (ranks % width != 0)
    throw unfaithful_error({path, {}},
                           "{} ranks in rows of {}: they don't divide, so "
                           "verl makes no mesh of them",
                           ranks, width)
        .with_hint(
            "--dp a multiple of it, or --fsdp-size another width, as "
            "fsdp_size of the job that continues; --to dcp holds any number");
  return {.replicas = ranks / width, .shards = width};
}

}  // namespace ckpt::runs
