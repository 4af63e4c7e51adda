// SPDX-License-Identifier: Apache-2.0
// Spreads layers over another number of pipeline stages than the source's.
//
//   24 layers, pp=4           6 6 6 6
//   24 layers, pp=4 vpp=2     0-2 3-5 6-8 9-11 | 12-14 … 21-23
//   10 layers, pp=4           1 3 3 3     decoder_first_pipeline_num_layers=1
//   --pp-layout 9,8,8,7       9 8 8 7     …_first_… = 9, …_last_… = 7
//   --pp-layout 2,9,8,7       2 9 8 7     pipeline_model_parallel_layout
//                                         Et*2|t*9|t*8|t*7L
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/legacy/key.h"
#include "formats/megatron/model/facts.h"
#include "formats/megatron/model/stage_split.h"

namespace ckpt::megatron {

// `wanted`: the layers of each chunk, or empty. Throws unfaithful_error if the
// layers can't be shared by so many stages.
StageSplit split_stages(const Catalog& source, const Facts& facts,
                        const std::vector<LegacyKey>& keys, uint32_t pp,
                        uint32_t vpp, std::string& assumption,
                        const std::vector<uint64_t>& wanted = {});

// `keys` are in the model's order. What comes before the layers goes to the
// first chunk, what comes after them to the last. A tied model's last stage
// gets its copy of the embedding.
std::vector<std::vector<LegacyKey>> fill_stages(
    const std::vector<LegacyKey>& keys, const StageSplit& split, uint32_t pp,
    bool tied);

}  // namespace ckpt::megatron
