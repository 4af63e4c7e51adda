// SPDX-License-Identifier: Apache-2.0
// Optimizer files: torch's Optimizer.state_dict(), one per rank.
//
//   {"state": {0: {"step": tensor, "exp_avg": tensor, …}, 1: …},
//    "param_groups": [{"lr": 0.1, …, "params": [0, 1, …]}]}
//
// Parameters are numbered in the order of the model's file, without buffers and
// second names of tied ones; with several groups, group by group. Values come
// in three encodings:
//
//   plain, DDP   tensors of the parameter's tp-local shape
//   FSDP2        DTensors: rows of it, wrapped with shape and device mesh
//   FSDP1        1-D tensors: ranges of its flattened elements
//
// In the catalog they are "<parameter>.<state>"; the groups are the object
// "optimizer.param_groups" with the parameters' names in "params".
#pragma once

#include <string>
#include <vector>

#include "formats/fairseq2/model.h"

namespace ckpt::fairseq2 {

inline constexpr const char* kGroupsObject = "optimizer.param_groups";
// The device of the mesh in FSDP2's files: "cuda", "cpu".
inline constexpr const char* kDeviceObject = "optimizer.device_type";
// Other values: "optimizer.<key>", "optimizer.state.<parameter>.<state>".
inline constexpr const char* kObjectPrefix = "optimizer.";
inline constexpr const char* kStatePrefix = "optimizer.state.";

// The parameters of a stage, in the order of their numbers. The catalog must
// have the stage's tensors.
std::vector<std::string> parameter_order(const Stage& stage,
                                         const Catalog& catalog);

// Reads DIR/pp_…, a grid of the model's size, into tensors and objects.
// `order[p]` is the parameter order of stage p.
void read_optimizer(const std::string& directory,
                    const std::vector<std::vector<std::string>>& order,
                    Catalog& catalog, const formats::ReadOptions& options);

}  // namespace ckpt::fairseq2
