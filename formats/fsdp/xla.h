// SPDX-License-Identifier: Apache-2.0
// What torch_xla's FullyShardedDataParallel keeps beside its shards:
// get_shard_metadata(), which its users save with each rank's state dict.
//
//   {"model": {"layers.0._fsdp_shard._fsdp_wrapped_module.flat_param_0": part},
//    "shard_metadata": {
//      "shard_info": {"layers.0": {
//        "_fsdp_shard._fsdp_wrapped_module.flat_param_0": {
//          "_orig_name": "_fsdp_wrapped_module.flat_param_0",
//          "_orig_size": torch.Size([70])}}},
//      "flatten_info": {"layers.0._fsdp_wrapped_module.flat_param_0":
//          (["norm.weight", …], [torch.Size([7]), …], [7, …])},
//      "rank": 0, "world_size": 2}}
//
// A parameter without flatten_info is sharded alone: its elements one after
// another. Parts have one length; the last ones are padded with zeros.
#pragma once

#include <optional>
#include <string>

#include "formats/fsdp/fairscale.h"
#include "lib/pickle/value.h"

namespace ckpt::fsdp {

// Nothing if the file has none. Throws input_error if it is malformed.
std::optional<ShardMetadata> read_xla_metadata(const pickle::Document& document,
                                               const std::string& path);

}  // namespace ckpt::fsdp
