// SPDX-License-Identifier: Apache-2.0
// The olmo_core_v1 format: what OLMo-core wrote up to 0.1.0.
//
//   step100/
//     model/metadata.json          index.h
//     model/rank_0.safetensors …   one per rank; every entry has one dimension
//     optim/metadata.json
//     optim/rank_0.safetensors …
//     train/rank0.pt …  config.yaml    of allenai/OLMo's trainer
//
// The optimizer's part is a flat dict made from torch's state dict:
//
//   num_param_groups             0-d I64
//   param_group0 …               U8: a pickled dict of options, of the ids
//                                "params" and of their "_param_names"
//   state.<param>.__exp_avg …    cut as the parameter is; __step is 0-d
//   state_keys                   U8: a pickled list: exp_avg, exp_avg_sq, step
//
// The pickles are objects of the catalog. The root of an object's document is
// the bytes of its pickle, so that they can be written back unchanged.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "formats/format.h"

namespace ckpt::olmo_core::v1 {

inline constexpr std::string_view kFormat = "olmo_core_v1";
inline constexpr std::string_view kGroupCount = "num_param_groups";
inline constexpr std::string_view kGroup = "param_group";
inline constexpr std::string_view kStateKeys = "state_keys";
inline constexpr std::string_view kState = "state.";

// param_group3: 3
std::optional<uint32_t> group_of(std::string_view name);

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::olmo_core::v1
