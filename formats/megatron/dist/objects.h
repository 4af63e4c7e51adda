// SPDX-License-Identifier: Apache-2.0
// The objects of a distributed checkpoint written for another topology.
//
//   <module>._extra_state/shard_<layer>_<layers>   of a layer: kept
//   rng_state/shard_<pp>.<tp>_<PP>.<TP>            of a rank: kept while the
//   rerun_state_machine_state/shard_<rank>_<N>     ranks are the same ones
//   optimizer.distributed.…                        of a rank's flat buffers
//   everything else                                kept
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/model/keys.h"

namespace ckpt::megatron {

// The source's objects that are not common and stay. Objects left out become
// problems of the target.
std::vector<const Object*> kept_objects(const Catalog& source,
                                        const Topology& topology,
                                        Target& target);

// The keys of `_extra_state` objects that Megatron's modules ask for on
// loading, for a model whose source has none. Adds a line to the assumptions if
// there are any. `keys` are those of the tensors.
std::vector<std::string> missing_extra_states(const Catalog& source,
                                              const KeyList& keys,
                                              const Facts& facts,
                                              Target& target);

}  // namespace ckpt::megatron
