// SPDX-License-Identifier: Apache-2.0
// What fairscale keeps beside its shards: FullyShardedDataParallel's
// local_metadata_dict(), which fairseq and metaseq put into each rank's file.
//
//   {"model": {"layers.0.flat_param_0": this rank's part, …},
//    "shard_metadata": {                        (fairseq: "fsdp_metadata")
//      "param_metadata": [
//        {"fsdp_path": "layers.0",
//         "params": {"flat_param_0": {"names": ["norm.weight", …],
//                                     "shapes": [torch.Size([7]), …],
//                                     "numels": [7, …],
//                                     "padding": 2}},   of this rank's part
//         "no_broadcast_optim_state": False,
//         "shared_param_info": [("emb.weight", "out.weight"), …]}, …],
//      "buffer_names": […]}}
//
// fairscale 0.4: nn/data_parallel/fully_sharded_data_parallel.py. Parts have
// length ceil(elements / ranks); the last ones are padded with zeros.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/fsdp/flat_params.h"
#include "lib/pickle/value.h"

namespace ckpt::fsdp {

struct ShardMetadata {
  std::string object;  // its key in the file
  FlatParameters all;  // without gaps
  // Of each one's part in this file, in elements; empty if it isn't said.
  std::vector<uint64_t> padding;
  std::optional<uint64_t> rank, ranks;  // whose it is, where it is said
  // Parameters under a second name: (which, the other name).
  std::vector<std::pair<std::string, std::string>> shared;
};

// Also of torch_xla's (xla.h). Nothing if the file has none. Throws input_error
// if it is malformed,
// unfaithful_error for parameters private to each rank (experts).
std::optional<ShardMetadata> read_shard_metadata(
    const pickle::Document& document, const std::string& path);

// Throws input_error if a rank's metadata describes other parameters than rank
// 0's, or other padding than its place in the catalog's flat tensors implies:
// the files are from different checkpoints, in the wrong order, or incomplete.
void check_padding(const std::vector<ShardMetadata>& ranks,
                   const Catalog& catalog);

// Call after expand(): gives shared parameters their second names, and removes
// the metadata, which no longer describes anything, from the objects.
void finish(const ShardMetadata& metadata, Catalog& catalog);

// True if the pickle has that metadata, or a key that FSDP gives to a flat
// parameter.
bool holds_flat(const pickle::Document& document);

}  // namespace ckpt::fsdp
